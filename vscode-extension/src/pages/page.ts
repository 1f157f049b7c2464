// Pages: the documents of webviews, and the messages that the extension exchanges with them.

import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import * as vscode from "vscode";
import type { Handlers, Message } from "./messages";

export interface PageOptions {
  /** The name of the page's bundles in out/webview. */
  name: string;
  title: string;
  /** Scripts of out/webview that run before the page's own. */
  libraries?: readonly string[];
  /** Scripts of out/webview for a worker: the text of the element `worker`. */
  worker?: readonly string[];
}

/** A webview with one of the pages of out/webview.  The page sends `ready` each time that it has loaded. */
export class Page<Received extends Message, Sent extends Message> {
  constructor(
    private readonly webview: vscode.Webview,
    private readonly extension: vscode.Uri,
    options: PageOptions,
    handlers: Handlers<Received>,
  ) {
    webview.options = { enableScripts: true, localResourceRoots: [] };
    webview.onDidReceiveMessage((message: Received) => handlers[message.kind as Received["kind"]](message as never));
    void this.document(options).then((html) => (webview.html = html));
  }

  send(message: Sent): void {
    void this.webview.postMessage(message);
  }

  /** The text of a file of out/webview. */
  bundled(file: string): Promise<string> {
    return readFile(vscode.Uri.joinPath(this.extension, "out", "webview", file).fsPath, "utf8");
  }

  /** Scripts and styles are in the document.  When VS Code runs in a browser, a service worker serves separate files:
   * it serves only one of several pages that open at once, and the others stay blank. */
  private async document({ name, title, libraries = [], worker }: PageOptions): Promise<string> {
    const texts = async (names: readonly string[]) => (await Promise.all(names.map((each) => this.bundled(`${each}.js`)))).map(escaped);
    const nonce = randomBytes(16).toString("base64");
    const [style, scripts, tasks] = await Promise.all([this.bundled(`${name}.css`), texts([...libraries, name]), texts(worker ?? [])]);
    const policy = `script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'${worker ? "; worker-src blob:" : ""}`;
    const head = `<style nonce="${nonce}">${escaped(style)}</style><title>${title}</title>`;
    const data = worker ? `<script id="worker" type="text/plain">${tasks.join("\n")}</script>` : "";
    return html(policy, head, data + scripts.map((each) => `<script nonce="${nonce}">${each}</script>`).join("\n"));
  }
}

/** A document without scripts that shows a text. */
export function textDocument(text: string): string {
  const style = "white-space: pre-wrap; overflow-wrap: anywhere; padding: 1em; font-family: var(--vscode-editor-font-family)";
  const content = text.replace(/[&<>]/g, (each) => `&#${each.charCodeAt(0)};`);
  return html("style-src 'unsafe-inline'", "", `<main role="status" style="${style}">${content}</main>`);
}

function html(policy: string, head: string, body: string): string {
  return `<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta http-equiv="Content-Security-Policy" content="default-src 'none'; ${policy}">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  ${head}
</head>
<body>${body}</body>
</html>`;
}

/** A script or style without the characters that would end its element. */
function escaped(text: string): string {
  return text.replace(/<\/(?=script|style)|<!--/gi, (found) => `\\x3c${found.slice(1)}`);
}
