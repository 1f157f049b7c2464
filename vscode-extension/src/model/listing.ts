// A model opens as text: the editor shows the listing that nncdbg writes, as in a debug session.

import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { textDocument } from "../pages/page";
import { type ChangedModels, onFileChange } from "./changes";
import { readWithNncdbg } from "../environment/process";
import { Missing, NotInstalled, offer, readyPython } from "../environment/python";

const FOLDER = ".nncdbg";
const BINARY_MODELS = /\.(onnx|pt2)$/;
const OWNER = "## the listing of ";

/** The model of a listing, from its last line; undefined for other files. */
export async function modelOfListing(file: string): Promise<string | undefined> {
  const folder = path.dirname(file);
  if (path.basename(folder) !== FOLDER) {
    return undefined;
  }
  const last = (await readFile(file, "utf8")).trimEnd().split("\n").at(-1) ?? "";
  return last.startsWith(OWNER) ? path.resolve(path.dirname(folder), last.slice(OWNER.length)) : undefined;
}

/** The program folder that a file is the text of, which has its inputs; the file itself if there is none. */
export function programOf(file: string): string {
  const folder = path.dirname(file);
  return path.basename(file) === "program.nnc" && existsSync(path.join(folder, "nncdbg.json")) ? folder : file;
}

/** ms after the first activation in which a model that VS Code has begun to open may still appear as a text. */
const FIRST_OPENED = 5000;
/** The key of the extension's state: models are registered with VS Code. */
const REGISTERED = "models have an editor";

/** Opens the listing of a model in the text editor, or shows why it cannot. */
export class ModelEditor implements vscode.CustomReadonlyEditorProvider, vscode.Disposable {
  static readonly type = "nncdbg.model";
  private readonly watchers = new Map<string, vscode.Disposable>();
  /** Models that have changed during their session. */
  private readonly outdated = new Set<string>();
  private readonly listener: vscode.Disposable;

  constructor(private readonly changes: ChangedModels) {
    this.listener = changes.onDidEnd((file) => {
      if (this.outdated.delete(file)) {
        void this.update(vscode.Uri.file(file));
      }
    });
  }

  /** Opens models again that VS Code shows as text because it did not know this editor yet.  It does once a window
   * with the extension has been closed, so that later text editors of models are the choice of the user. */
  replaceTexts(state: vscode.Memento): vscode.Disposable {
    if (state.get(REGISTERED)) {
      return new vscode.Disposable(() => undefined);
    }
    void state.update(REGISTERED, true);
    const replace = (tabs: readonly vscode.Tab[]) => tabs.filter(showsModel).forEach((tab) => void openAgain(tab));
    const listener = vscode.window.tabGroups.onDidChangeTabs(({ opened }) => replace(opened));
    setImmediate(() => vscode.window.tabGroups.all.forEach(({ tabs }) => replace(tabs)));
    const timer = setTimeout(() => void listener.dispose(), FIRST_OPENED);
    return vscode.Disposable.from(listener, { dispose: () => clearTimeout(timer) });
  }

  openCustomDocument(uri: vscode.Uri): vscode.CustomDocument {
    return { uri, dispose: () => undefined };
  }

  async resolveCustomEditor(document: vscode.CustomDocument, panel: vscode.WebviewPanel): Promise<void> {
    panel.webview.html = textDocument("Reading the model …");
    try {
      await this.show(document.uri, panel.viewColumn);
      panel.dispose();
    } catch (error) {
      panel.webview.html = textDocument((error as Error).message);
      if (error instanceof Missing && !(error instanceof NotInstalled)) {
        void offer(vscode.window.showErrorMessage, error);
      }
    }
  }

  /** Shows the listing of a model, and updates it when the model's file changes. */
  async show(model: vscode.Uri, column?: vscode.ViewColumn): Promise<void> {
    const listing = vscode.Uri.file(await listingOf(model));
    // `showTextDocument` fails if another editor opens in the meantime: a double click opens twice.
    await vscode.commands.executeCommand("vscode.open", listing, { viewColumn: column, preview: false });
    this.follow(model);
  }

  private follow(model: vscode.Uri): void {
    if (this.watchers.has(model.fsPath)) {
      return;
    }
    this.watchers.set(model.fsPath, onFileChange(model.fsPath, () => void this.update(model)));
  }

  /** During a session, the listing stays unchanged. */
  private async update(model: vscode.Uri): Promise<void> {
    if (this.changes.isDebugged(model.fsPath)) {
      this.outdated.add(model.fsPath);
      return;
    }
    try {
      await listingOf(model);
    } catch (error) {
      void vscode.window.showWarningMessage(`${path.basename(model.fsPath)} has changed, but its listing cannot be updated: ${(error as Error).message}`);
    }
  }

  dispose(): void {
    this.listener.dispose();
    this.watchers.forEach((each) => void each.dispose());
    this.watchers.clear();
  }
}

function showsModel({ input }: vscode.Tab): boolean {
  return input instanceof vscode.TabInputText && input.uri.scheme === "file" && BINARY_MODELS.test(input.uri.path) && !hasChosenEditor(input.uri);
}

/** Whether the user has associated models of this kind with another editor. */
function hasChosenEditor({ path: file }: vscode.Uri): boolean {
  const associations = vscode.workspace.getConfiguration("workbench").get<Record<string, string>>("editorAssociations") ?? {};
  return (associations[`*${path.extname(file)}`] ?? ModelEditor.type) !== ModelEditor.type;
}

async function openAgain(tab: vscode.Tab): Promise<void> {
  const { uri } = tab.input as vscode.TabInputText;
  await vscode.commands.executeCommand("vscode.openWith", uri, ModelEditor.type, tab.group.viewColumn);
  // A preview has been replaced already.
  const texts = vscode.window.tabGroups.all.flatMap(({ tabs }) => tabs).filter((each) => showsModel(each) && (each.input as vscode.TabInputText).uri.toString() === uri.toString());
  await vscode.window.tabGroups.close(texts);
}

/** Has nncdbg write the listing of a model.  Returns its path. */
export async function listingOf(model: vscode.Uri): Promise<string> {
  const folder = vscode.workspace.getWorkspaceFolder(model) ?? vscode.workspace.workspaceFolders?.[0];
  const workspace = folder?.uri.fsPath ?? path.dirname(model.fsPath);
  const python = await readyPython(folder?.uri);
  return (await readWithNncdbg(python, ["listing", model.fsPath, "--workspace", workspace])).replace(/\r?\n$/, "");
}

