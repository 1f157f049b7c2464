// A model opens as text: its listing, written by nncdbg where a debug session writes it, is shown in its place.

import { readFile } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { type ChangedModels, onFileChange } from "./changes";
import { Missing, NotInstalled, offer, readyPython, run } from "../environment/python";

const LISTING = ["-m", "nncdbg.terminal.main", "listing"];
const FOLDER = ".nncdbg";
const OWNER = "## the listing of ";

/** The model that the last line of a listing names; undefined of any other file. */
export async function modelOfListing(file: string): Promise<string | undefined> {
  const folder = path.dirname(file);
  if (path.basename(folder) !== FOLDER) {
    return undefined;
  }
  const last = (await readFile(file, "utf8")).trimEnd().split("\n").at(-1) ?? "";
  return last.startsWith(OWNER) ? path.resolve(path.dirname(folder), last.slice(OWNER.length)) : undefined;
}

/** Opens models: each gives way to the text editor with its listing, or says why it cannot. */
export class ModelEditor implements vscode.CustomReadonlyEditorProvider, vscode.Disposable {
  static readonly type = "nncdbg.model";
  private readonly watchers = new Map<string, vscode.Disposable>();
  /** Models that have changed while they are debugged. */
  private readonly late = new Set<string>();
  private readonly listener: vscode.Disposable;

  constructor(private readonly changes: ChangedModels) {
    this.listener = changes.onDidEnd((file) => {
      if (this.late.delete(file)) {
        void this.update(vscode.Uri.file(file));
      }
    });
  }

  openCustomDocument(uri: vscode.Uri): vscode.CustomDocument {
    return { uri, dispose: () => undefined };
  }

  async resolveCustomEditor(document: vscode.CustomDocument, panel: vscode.WebviewPanel): Promise<void> {
    panel.webview.html = page("Reading the model …");
    try {
      await this.show(document.uri, panel.viewColumn);
      panel.dispose();
    } catch (error) {
      panel.webview.html = page(wordsOf(error));
      if (error instanceof Missing && !(error instanceof NotInstalled)) {
        void offer(vscode.window.showErrorMessage, error);
      }
    }
  }

  /** Shows the listing of a model, which follows the model's file from now on. */
  async show(model: vscode.Uri, column?: vscode.ViewColumn): Promise<void> {
    const listing = vscode.Uri.file(await listingOf(model));
    // `showTextDocument` would fail where another editor opens in the meantime: a double click opens twice.
    await vscode.commands.executeCommand("vscode.open", listing, { viewColumn: column, preview: false });
    this.follow(model);
  }

  private follow(model: vscode.Uri): void {
    if (this.watchers.has(model.fsPath)) {
      return;
    }
    this.watchers.set(model.fsPath, onFileChange(model.fsPath, () => void this.update(model)));
  }

  /** The text that a session stands in stays as it is. */
  private async update(model: vscode.Uri): Promise<void> {
    if (this.changes.isDebugged(model.fsPath)) {
      this.late.add(model.fsPath);
      return;
    }
    try {
      await listingOf(model);
    } catch (error) {
      const words = `${path.basename(model.fsPath)} has changed, but its listing cannot be updated: ${wordsOf(error)}`;
      void vscode.window.showWarningMessage(words);
    }
  }

  dispose(): void {
    this.listener.dispose();
    this.watchers.forEach((each) => void each.dispose());
    this.watchers.clear();
  }
}

/** Has nncdbg write a model's listing; its path. */
export async function listingOf(model: vscode.Uri): Promise<string> {
  const folder = vscode.workspace.getWorkspaceFolder(model) ?? vscode.workspace.workspaceFolders?.[0];
  const workspace = folder?.uri.fsPath ?? path.dirname(model.fsPath);
  const python = await readyPython(folder?.uri);
  return (await run(python, [...LISTING, model.fsPath, "--workspace", workspace])).stdout.replace(/\r?\n$/, "");
}

function wordsOf(error: unknown): string {
  const { stderr } = error as { stderr?: string };
  return stderr?.trim() || (error as Error).message;
}

function page(text: string): string {
  const escaped = text.replace(/[&<>]/g, (each) => `&#${each.charCodeAt(0)};`);
  const policy = "default-src 'none'; style-src 'unsafe-inline'";
  const style = "white-space: pre-wrap; overflow-wrap: anywhere; padding: 1em; font-family: var(--vscode-editor-font-family)";
  return `<!DOCTYPE html><html lang="en"><head><meta http-equiv="Content-Security-Policy" content="${policy}"></head>
    <body><main role="status" style="${style}">${escaped}</main></body></html>`;
}
