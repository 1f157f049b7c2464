// Opens the form "Run with": by its command, and when a launch fails because of an input or a size.

import * as vscode from "vscode";
import { withErrorMessage } from "../session/commands";
import { launchFor } from "../session/configurations";
import { readyPython } from "../environment/python";
import type { RunForm } from "./form";
import type { LastRuns } from "./lastRuns";

/** The error id of the server for an input or a size that is missing or does not match. */
const INPUT_ERROR = 2003;

export class RunWith implements vscode.Disposable {
  private form: Promise<RunForm> | undefined;

  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly runs: LastRuns,
  ) {}

  /** Opens the form for a file, by default for the open one. */
  async open(file?: vscode.Uri): Promise<void> {
    const configuration = await launchFor(this.runs, file);
    if (configuration) {
      const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(configuration.program));
      await withErrorMessage(async () => (await this.load()).open(configuration, await readyPython(folder?.uri)));
    }
  }

  /** Shows an error of a launch in the form, if it is about inputs or sizes, or if the form has started the session.
   * Returns whether it does. */
  showError({ configuration }: vscode.DebugSession, id: number, message: string): boolean {
    if (id !== INPUT_ERROR && !configuration.__form) {
      return false;
    }
    void withErrorMessage(async () => (await this.load()).open(configuration, configuration.__python, message));
    return true;
  }

  private load(): Promise<RunForm> {
    this.form ??= import("./form").then(({ RunForm }) => new RunForm(this.context, this.runs));
    return this.form;
  }

  dispose(): void {
    void this.form?.then((form) => form.dispose());
  }
}
