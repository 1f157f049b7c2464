// Starts the language server, and restarts it when the user selects another Python.  The language status of the editor
// shows errors; the rest of the extension does not need the server.

import * as vscode from "vscode";
import type { Location, Position } from "vscode-languageserver-types";
import { Client } from "./client";
import { editorLocation, editorPosition } from "./conversion";
import { ENVIRONMENT, NNCDBG } from "../environment/process";
import { Missing, NotInstalled, offer, onPythonChange, readyPython } from "../environment/python";

const SERVER = [...NNCDBG, "lsp"];
const LANGUAGE = "nnc";
const RESTART = { title: "Restart", command: "nncdbg.restartLanguageServer" };

export class Language implements vscode.Disposable {
  private readonly status = vscode.languages.createLanguageStatusItem("nncdbg.language", { language: LANGUAGE });
  private readonly output = vscode.window.createOutputChannel("nncdbg language server");
  private readonly listeners: vscode.Disposable[] = [
    this.status,
    this.output,
    vscode.commands.registerCommand("nncdbg.showReferences", showReferences),
  ];
  private client: Client | undefined;
  private starting: Promise<void> = Promise.resolve();
  private shownError: string | undefined;

  constructor() {
    this.status.name = "nncdbg";
    void onPythonChange(() => void this.restart()).then((listener) => this.listeners.push(listener));
  }

  /** Restarts the server, after any restart that is in progress. */
  restart(): Promise<void> {
    this.starting = this.starting.then(() => this.start());
    return this.starting;
  }

  private async start(): Promise<void> {
    try {
      await this.stop();
      this.showStatus("starting …", vscode.LanguageStatusSeverity.Information, true);
      const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
      const command = {
        python: await readyPython(folder),
        arguments: SERVER,
        cwd: folder?.fsPath,
        env: { ...process.env, ...ENVIRONMENT },
      };
      this.client = await Client.start(command, this.output, () =>
        this.showStatus("the server exited; its output channel shows the last output", vscode.LanguageStatusSeverity.Error),
      );
      this.shownError = undefined;
      this.showStatus("running", vscode.LanguageStatusSeverity.Information);
    } catch (error) {
      this.fail(error as Error);
    }
  }

  private fail(error: Error): void {
    this.output.appendLine(error.message);
    this.showStatus(error.message, vscode.LanguageStatusSeverity.Error);
    if (error instanceof Missing && !(error instanceof NotInstalled) && vscode.workspace.isTrusted && this.shownError !== error.message) {
      this.shownError = error.message;
      void offer(vscode.window.showWarningMessage, error);
    }
  }

  private showStatus(text: string, severity: vscode.LanguageStatusSeverity, busy = false): void {
    Object.assign(this.status, { text: "nncdbg", detail: `language server: ${text}`, severity, busy, command: RESTART });
  }

  private async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    await client?.stop();
  }

  dispose(): void {
    this.listeners.forEach((each) => void each.dispose());
    void this.stop();
  }
}

/** Shows the references of a code lens, which has records of the protocol. */
async function showReferences(uri: string, position: Position, locations: Location[]): Promise<void> {
  const target = [vscode.Uri.parse(uri), editorPosition(position)];
  await vscode.commands.executeCommand("editor.action.showReferences", ...target, locations.map(editorLocation));
}
