// Answers of nncdbg that are longer than a message, each in a document of its own that nobody has to save.

import * as vscode from "vscode";

const SCHEME = "nncdbg-answer";
const COLORS = /\u001b\[[0-9;]*m/g;

export class Explanations implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly registered = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);
  readonly onDidChange = this.changed.event;

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.path) ?? "";
  }

  async show(title: string, text: string): Promise<void> {
    const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${title.replaceAll("/", "∕")}` });
    this.texts.set(uri.path, text.replace(COLORS, ""));
    this.changed.fire(uri);
    const options = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: true };
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(uri), options);
  }

  dispose(): void {
    this.registered.dispose();
    this.changed.dispose();
  }
}
