// The document of a webview: one of the pages of out/webview, with its script and its style.

import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import * as vscode from "vscode";

/** What stands in the document as text, by the id of its element. */
type Texts = Record<string, string>;

/** Both are written into the document: as files they would come by a service worker where VS Code is in a browser,
 * which serves one of several pages that open at once, and leaves the others blank. */
export async function documentOf(extension: vscode.Uri, name: string, title: string, texts: Texts = {}): Promise<string> {
  const nonce = randomBytes(16).toString("base64");
  const [script, style] = await Promise.all(["js", "css"].map((suffix) => bundled(extension, `${name}.${suffix}`)));
  const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'${Object.keys(texts).length ? "; worker-src blob:" : ""}`;
  const blocks = Object.entries(texts).map(([id, text]) => `<script id="${id}" type="text/plain">${enclosed(text)}</script>`);
  return `<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta http-equiv="Content-Security-Policy" content="${policy}">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <style nonce="${nonce}">${enclosed(style)}</style>
  <title>${title}</title>
</head>
<body>
  ${blocks.join("\n  ")}
  <script nonce="${nonce}">${enclosed(script)}</script>
</body>
</html>`;
}

/** A file of out/webview. */
export function bundled(extension: vscode.Uri, file: string): Promise<string> {
  return readFile(vscode.Uri.joinPath(extension, "out", "webview", file).fsPath, "utf8");
}

/** Nothing in a text ends the element that it is in. */
function enclosed(text: string): string {
  return text.replace(/<\/(?=script|style)|<!--/gi, (found) => `\\x3c${found.slice(1)}`);
}
