// When the form "Run with" opens: by its command, and when a launch fails over an input or a size.

import * as vscode from "vscode";
import { told } from "../session/commands";
import { launchFor } from "../session/configurations";
import { readyPython } from "../environment/python";
import type { RunForm } from "./form";

/** The number of the server's errors that an input or a size is missing or does not fit. */
const INPUTS = 2003;

export class RunWith implements vscode.Disposable {
  private form: Promise<RunForm> | undefined;

  constructor(private readonly context: vscode.ExtensionContext) {}

  /** The command, for a file or for the one that is open. */
  async open(place?: vscode.Uri): Promise<void> {
    const configuration = await launchFor(place);
    if (configuration) {
      const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(configuration.program));
      await told(async () => (await this.load()).open(configuration, await readyPython(folder?.uri)));
    }
  }

  /** Whether the form shows an error of a launch: one of inputs or sizes, and any of a session that it has started. */
  takes({ configuration }: vscode.DebugSession, number: number, words: string): boolean {
    if (number !== INPUTS && !configuration.__form) {
      return false;
    }
    void told(async () => (await this.load()).open(configuration, configuration.__python, words));
    return true;
  }

  private load(): Promise<RunForm> {
    this.form ??= import("./form").then(({ RunForm: Made }) => new Made(this.context));
    return this.form;
  }

  dispose(): void {
    void this.form?.then((form) => form.dispose());
  }
}
