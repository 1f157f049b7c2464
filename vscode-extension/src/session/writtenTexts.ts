// Texts that the debug server writes to files.  A running training has another text at each stop, and VS Code reads a
// changed file only after a while: an arrow that it has drawn before would be lost.

import { readFile } from "node:fs/promises";
import * as vscode from "vscode";

/** ms in which VS Code reads a changed file; a stop is not delayed longer. */
const LIMIT = 2000;

/** Waits until the open documents of these files have the texts of the files. */
export async function untilRead(files: Iterable<string>): Promise<void> {
  await Promise.all([...files].map(untilDocumentIsRead));
}

async function untilDocumentIsRead(file: string): Promise<void> {
  const text = await readFile(file, "utf8").catch(() => undefined);
  const document = vscode.workspace.textDocuments.find(({ uri }) => uri.scheme === "file" && uri.fsPath === file);
  const isRead = () => !document || document.isDirty || document.isClosed || text === undefined || document.getText() === text;
  if (isRead()) {
    return;
  }
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer);
      listener.dispose();
      resolve();
    };
    const listener = vscode.workspace.onDidChangeTextDocument((change) => change.document === document && isRead() && end());
    const timer = setTimeout(end, LIMIT);
  });
}
