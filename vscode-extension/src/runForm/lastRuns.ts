// The choices of the form "Run with" per model: F5 repeats them, and a lens shows them.

import * as vscode from "vscode";
import { type Choices, launchKeys } from "./fields";

export class LastRuns implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChange = this.changed.event;

  constructor(private readonly state: vscode.Memento) {}

  choices(program: string): Choices | undefined {
    return this.state.get<Choices>(keyOf(program));
  }

  async keep(program: string, choices: Choices): Promise<void> {
    await this.state.update(keyOf(program), choices);
    this.changed.fire();
  }

  /** The keys of a launch that repeats the last run; none without a run, or if its sizes or seed are no numbers. */
  keys(program: string): object {
    const choices = this.choices(program);
    try {
      return choices ? launchKeys(choices) : {};
    } catch {
      return {};
    }
  }

  dispose(): void {
    this.changed.dispose();
  }
}

const keyOf = (program: string): string => `run ${program}`;
