// A view of the side bar that is a page: what its request answers is drawn there, and a click goes to a line.

import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import { Follower, FollowingView } from "./following";
import type { FromPage, Target, ToPage } from "./pageMessages";
import { Sessions } from "./sessions";

export abstract class DrawnView implements FollowingView, vscode.WebviewViewProvider, vscode.Disposable {
  abstract readonly request: string;
  readonly follower: Follower;
  private readonly registered: vscode.Disposable;
  private view: vscode.WebviewView | undefined;
  private session: vscode.DebugSession | undefined;
  private last: ToPage = { kind: "say", words: "" };
  private asked: object = {};

  constructor(
    private readonly extension: vscode.Uri,
    sessions: Sessions,
    private readonly name: string,
    private readonly title: string,
  ) {
    this.follower = new Follower(this, sessions);
    this.registered = vscode.window.registerWebviewViewProvider(`nncdbg.${name}`, this);
  }

  resolveWebviewView(view: vscode.WebviewView): void {
    this.view = view;
    const root = vscode.Uri.joinPath(this.extension, "out", "webview");
    view.webview.options = { enableScripts: true, localResourceRoots: [root] };
    view.webview.onDidReceiveMessage((message: FromPage) => this.hear(message));
    view.onDidChangeVisibility(() => this.follower.update());
    view.onDidDispose(() => (this.view = undefined));
    view.webview.html = this.page(view.webview, root);
  }

  get visible(): boolean {
    return this.view?.visible ?? false;
  }

  asks(): object {
    return this.asked;
  }

  show(answer: unknown, session: vscode.DebugSession): void {
    this.session = session;
    this.tell({ kind: "show", answer });
  }

  say(words: string): void {
    this.tell({ kind: "say", words });
  }

  private tell(message: ToPage): void {
    this.last = message;
    void this.view?.webview.postMessage(message);
  }

  private hear(message: FromPage): void {
    switch (message.kind) {
      case "ready":
        // The page was not there when this was told, or was taken away with its view.
        this.tell(this.last);
        void this.follower.update();
        break;
      case "open":
        void this.open(message.target);
        break;
      case "tensor":
        void vscode.commands.executeCommand("nncdbg.viewTensor", {
          variable: { name: message.expression, evaluateName: message.expression },
        });
        break;
      case "ask":
        this.asked = message.asks;
        this.follower.again();
        break;
    }
  }

  private async open({ source, line }: Target): Promise<void> {
    const reference = source.sourceReference;
    const uri = reference ? vscode.debug.asDebugSourceUri({ ...source }, this.session) : vscode.Uri.file(source.path ?? "");
    const place = new vscode.Range(line - 1, 0, line - 1, 0);
    try {
      const document = await vscode.workspace.openTextDocument(uri);
      const editor = await vscode.window.showTextDocument(document, { selection: place, viewColumn: columnOf(uri) });
      editor.revealRange(place, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    } catch (error) {
      void vscode.window.showErrorMessage((error as Error).message);
    }
  }

  private page(webview: vscode.Webview, root: vscode.Uri): string {
    const nonce = randomBytes(16).toString("base64");
    const script = webview.asWebviewUri(vscode.Uri.joinPath(root, `${this.name}.js`));
    const style = webview.asWebviewUri(vscode.Uri.joinPath(root, `${this.name}.css`));
    const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src ${webview.cspSource}`;
    return `<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta http-equiv="Content-Security-Policy" content="${policy}">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <link rel="stylesheet" href="${style}">
  <title>${this.title}</title>
</head>
<body>
  <script nonce="${nonce}" src="${script}"></script>
</body>
</html>`;
  }

  dispose(): void {
    this.registered.dispose();
  }
}

/** Where the text is open already, there it is shown. */
function columnOf(uri: vscode.Uri): vscode.ViewColumn | undefined {
  return vscode.window.visibleTextEditors.find((each) => each.document.uri.toString() === uri.toString())?.viewColumn;
}
