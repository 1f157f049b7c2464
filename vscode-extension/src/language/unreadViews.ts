// The setting for statements that only make a view, and that nothing reads.

import * as vscode from "vscode";

const SECTION = "nncdbg";
const NAME = "dimUnreadViews";

export const dimsUnreadViews = (uri: vscode.Uri): boolean => vscode.workspace.getConfiguration(SECTION, uri).get(NAME, true);

export function onDimUnreadViewsChange(changed: () => void): vscode.Disposable {
  return vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration(`${SECTION}.${NAME}`) && changed());
}
