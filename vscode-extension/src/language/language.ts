// The client of `nncdbg lsp`.  It starts with the first graph text, and again when another Python is chosen.
// What goes wrong stands in the language status of the editor; the rest of the extension does without.

import * as vscode from "vscode";
import type { Location, Position } from "vscode-languageserver-types";
import { Client } from "./client";
import { editorLocation, editorPosition } from "./conversion";
import { ENVIRONMENT, Missing, NNCDBG, NotInstalled, offer, onPythonChange, readyPython } from "../environment/python";

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
  private turn: Promise<void> = Promise.resolve();
  private told: string | undefined;

  constructor() {
    this.status.name = "nncdbg";
    void onPythonChange(() => void this.restart()).then((listener) => this.listeners.push(listener));
  }

  /** One start after the other, however fast they are asked for. */
  restart(): Promise<void> {
    this.turn = this.turn.then(() => this.startAnew());
    return this.turn;
  }

  private async startAnew(): Promise<void> {
    try {
      await this.stop();
      this.say("starting …", vscode.LanguageStatusSeverity.Information, true);
      const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
      const command = {
        python: await readyPython(folder),
        arguments: SERVER,
        cwd: folder?.fsPath,
        env: { ...process.env, ...ENVIRONMENT },
      };
      this.client = await Client.start(command, this.output, () =>
        this.say("the server exited; its output channel shows the last output", vscode.LanguageStatusSeverity.Error),
      );
      this.told = undefined;
      this.say("running", vscode.LanguageStatusSeverity.Information);
    } catch (error) {
      this.fail(error as Error);
    }
  }

  private fail(error: Error): void {
    this.output.appendLine(error.message);
    this.say(error.message, vscode.LanguageStatusSeverity.Error);
    if (error instanceof Missing && !(error instanceof NotInstalled) && vscode.workspace.isTrusted && this.told !== error.message) {
      this.told = error.message;
      void offer(vscode.window.showWarningMessage, error);
    }
  }

  private say(what: string, severity: vscode.LanguageStatusSeverity, busy = false): void {
    Object.assign(this.status, { text: "nncdbg", detail: `language server: ${what}`, severity, busy, command: RESTART });
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

/** Of a code lens: what the protocol says, in the editor's own terms. */
async function showReferences(uri: string, position: Position, locations: Location[]): Promise<void> {
  const place = [vscode.Uri.parse(uri), editorPosition(position)];
  await vscode.commands.executeCommand("editor.action.showReferences", ...place, locations.map(editorLocation));
}
