// Which Python runs the server: the setting, else what the Python extension has selected, else python3.

import * as vscode from "vscode";

interface PythonExtension {
  environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
  };
}

export async function pythonOf(folder: vscode.WorkspaceFolder | undefined): Promise<string> {
  const setting = vscode.workspace.getConfiguration("nncdbg", folder?.uri).get<string>("python");
  if (setting) {
    return setting;
  }
  const extension = vscode.extensions.getExtension<PythonExtension>("ms-python.python");
  const api = extension && (extension.isActive ? extension.exports : await extension.activate());
  return api?.environments?.getActiveEnvironmentPath(folder?.uri).path || "python3";
}
