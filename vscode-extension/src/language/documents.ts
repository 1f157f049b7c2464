// Notifies the server when documents are opened, changed and closed.

import * as vscode from "vscode";
import { protocolRange } from "./conversion";

export type Notify = (method: string, params: object) => void;

export function synchronize(selector: vscode.DocumentSelector, notify: Notify): vscode.Disposable[] {
  const open = new Set<string>();
  const opened = (document: vscode.TextDocument): void => {
    const uri = document.uri.toString();
    if (vscode.languages.match(selector, document) === 0 || open.has(uri)) {
      return;
    }
    open.add(uri);
    const { languageId, version } = document;
    notify("textDocument/didOpen", { textDocument: { uri, languageId, version, text: document.getText() } });
  };
  const changed = ({ document, contentChanges }: vscode.TextDocumentChangeEvent): void => {
    const uri = document.uri.toString();
    if (open.has(uri) && contentChanges.length > 0) {
      notify("textDocument/didChange", {
        textDocument: { uri, version: document.version },
        contentChanges: contentChanges.map(({ range, text }) => ({ range: protocolRange(range), text })),
      });
    }
  };
  const closed = (document: vscode.TextDocument): void => {
    const uri = document.uri.toString();
    if (open.delete(uri)) {
      notify("textDocument/didClose", { textDocument: { uri } });
    }
  };
  vscode.workspace.textDocuments.forEach(opened);
  return [
    vscode.workspace.onDidOpenTextDocument(opened),
    vscode.workspace.onDidChangeTextDocument(changed),
    vscode.workspace.onDidCloseTextDocument(closed),
  ];
}
