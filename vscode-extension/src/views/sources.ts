// Lines of a session's sources in the editor.

import * as vscode from "vscode";
import type { SourceLine } from "../pages/messages";

/** The URI of a source: a file, or a text that the debug server sends. */
export function uriOf(source: SourceLine["source"], session: vscode.DebugSession | undefined): vscode.Uri {
  // VS Code opens a text without a path under its name.
  const path = source.path ?? source.name;
  return source.sourceReference ? vscode.debug.asDebugSourceUri({ ...source, path }, session) : vscode.Uri.file(source.path ?? "");
}

/** Shows a line; in the column of an editor that shows the text already, if there is one. */
export async function openLine({ source, line }: SourceLine, session: vscode.DebugSession | undefined): Promise<void> {
  const uri = uriOf(source, session);
  const selection = new vscode.Range(line - 1, 0, line - 1, 0);
  const { viewColumn } = vscode.window.visibleTextEditors.find((each) => each.document.uri.toString() === uri.toString()) ?? {};
  try {
    const document = await vscode.workspace.openTextDocument(uri);
    const editor = await vscode.window.showTextDocument(document, { selection, viewColumn });
    editor.revealRange(selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  } catch (error) {
    void vscode.window.showErrorMessage(`cannot show ${source.path ?? source.name}: ${(error as Error).message}`);
  }
}
