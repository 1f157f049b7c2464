// A view that is a page: what its request answers is drawn there, and a click goes to a line.

import * as vscode from "vscode";
import { Follower, FollowingView } from "./following";
import { documentOf } from "../pages/page";
import type { FromPage, Target, ToPage } from "../pages/messages";
import { Sessions } from "./sessionEvents";

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
    private readonly libraries: readonly string[] = [],
  ) {
    this.follower = new Follower(this, sessions);
    this.registered = vscode.window.registerWebviewViewProvider(`nncdbg.${name}`, this);
  }

  async resolveWebviewView(view: vscode.WebviewView): Promise<void> {
    this.view = view;
    view.webview.options = { enableScripts: true, localResourceRoots: [] };
    view.webview.onDidReceiveMessage((message: FromPage) => this.hear(message));
    view.onDidChangeVisibility(() => this.follower.update());
    view.onDidDispose(() => this.view === view && (this.view = undefined));
    view.webview.html = await documentOf(this.extension, this.name, this.title, { libraries: this.libraries });
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

  /** Shows what is asked for like this from now on. */
  protected ask(asks: object): void {
    this.asked = asks;
    void this.view?.webview.postMessage({ kind: "asked", asks } satisfies ToPage);
    this.follower.again();
  }

  private tell(message: ToPage): void {
    this.last = message;
    void this.view?.webview.postMessage(message);
  }

  private hear(message: FromPage): void {
    switch (message.kind) {
      case "ready":
        // The page was not there when this was told, or was taken away with its view.
        void this.view?.webview.postMessage({ kind: "asked", asks: this.asked } satisfies ToPage);
        this.tell(this.last);
        void this.follower.update();
        break;
      case "open":
        void openLine(message.target, this.session);
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

  dispose(): void {
    this.registered.dispose();
  }
}

/** Where a source of a session is for VS Code. */
export function uriOf(source: Target["source"], session: vscode.DebugSession | undefined): vscode.Uri {
  return source.sourceReference ? vscode.debug.asDebugSourceUri({ ...source }, session) : vscode.Uri.file(source.path ?? "");
}

/** Shows a line of a source. */
export async function openLine({ source, line }: Target, session: vscode.DebugSession | undefined): Promise<void> {
  const uri = uriOf(source, session);
  const place = new vscode.Range(line - 1, 0, line - 1, 0);
  try {
    const document = await vscode.workspace.openTextDocument(uri);
    const editor = await vscode.window.showTextDocument(document, { selection: place, viewColumn: columnOf(uri) });
    editor.revealRange(place, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  } catch (error) {
    void vscode.window.showErrorMessage(`cannot show ${source.path ?? source.name}: ${(error as Error).message}`);
  }
}

/** Where the text is open already, there it is shown. */
function columnOf(uri: vscode.Uri): vscode.ViewColumn | undefined {
  return vscode.window.visibleTextEditors.find((each) => each.document.uri.toString() === uri.toString())?.viewColumn;
}
