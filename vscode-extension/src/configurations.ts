// F5 without a launch.json debugs the file at hand.

import * as vscode from "vscode";

const MODELS = /\.(onnx|nnc)$/;

export class Configurations implements vscode.DebugConfigurationProvider {
  provideDebugConfigurations(): vscode.DebugConfiguration[] {
    const file = currentModel();
    return file ? [launchOf(file)] : [];
  }

  resolveDebugConfiguration(
    _folder: vscode.WorkspaceFolder | undefined,
    configuration: vscode.DebugConfiguration,
  ): vscode.DebugConfiguration | undefined {
    if (configuration.type || configuration.request || configuration.name) {
      return configuration;
    }
    const file = currentModel();
    if (!file) {
      void vscode.window.showInformationMessage("nncdbg: open an .onnx model or graph text (.nnc) to debug it.");
      return undefined;
    }
    return launchOf(file);
  }
}

function currentModel(): string | undefined {
  const tab = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
  const uri = (tab as { uri?: vscode.Uri } | undefined)?.uri;
  return uri && MODELS.test(uri.fsPath) ? uri.fsPath : undefined;
}

function launchOf(program: string): vscode.DebugConfiguration {
  return { type: "nncdbg", request: "launch", name: "Debug this graph", program, stopOnEntry: true };
}
