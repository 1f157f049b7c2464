// The example of the walkthrough, copied into the workspace so that the user can edit it.

import * as vscode from "vscode";

const NAME = "nan_softmax.nnc";

export async function openExample(extension: vscode.Uri): Promise<void> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  if (!folder) {
    void vscode.window.showInformationMessage("nncdbg: open a folder to store a copy of the example.");
    return;
  }
  const target = vscode.Uri.joinPath(folder, NAME);
  if (!(await exists(target))) {
    await vscode.workspace.fs.copy(vscode.Uri.joinPath(extension, "out", NAME), target);
  }
  await vscode.window.showTextDocument(target);
}

async function exists(uri: vscode.Uri): Promise<boolean> {
  try {
    await vscode.workspace.fs.stat(uri);
    return true;
  } catch {
    return false;
  }
}
