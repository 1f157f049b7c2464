// The document of a webview: one of the pages of out/webview, with its script and its style.

import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import * as vscode from "vscode";

/** What a document has beside its page: texts, by the ids of their elements, and libraries that run before it. */
interface Beside {
  texts?: Record<string, string>;
  libraries?: readonly string[];
}

/** Both are written into the document: as files they would come by a service worker where VS Code is in a browser,
 * which serves one of several pages that open at once, and leaves the others blank. */
export async function documentOf(extension: vscode.Uri, name: string, title: string, { texts = {}, libraries = [] }: Beside = {}): Promise<string> {
  const nonce = randomBytes(16).toString("base64");
  const style = await bundled(extension, `${name}.css`);
  const scripts = await Promise.all([...libraries, name].map((each) => bundled(extension, `${each}.js`)));
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
  ${scripts.map((each) => `<script nonce="${nonce}">${enclosed(each)}</script>`).join("\n  ")}
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
