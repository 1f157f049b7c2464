// Adds a watch expression with completion, which VS Code's own input lacks.

import * as vscode from "vscode";
import { currentSession, selectedFrameId } from "./commands";

interface Completion {
  label: string;
  start: number;
  length: number;
}

/** Completes the argument of `print`: an expression, no command. */
const HEAD = "print ";
const ADD = "debug.addToWatchExpressions";

/** Reads an expression from the user, and adds it to *Watch*. */
export async function addWatch(): Promise<void> {
  const session = currentSession();
  const frameId = selectedFrameId();
  const input = vscode.window.createQuickPick();
  input.placeholder = "An expression, such as max(abs(%h))";
  const complete = async () => {
    const { value } = input;
    const argument = { text: HEAD + value, column: HEAD.length + value.length + 1, frameId };
    const completions = await session.customRequest("completions", argument).then(({ targets }) => targets as Completion[], () => []);
    if (value === input.value) {
      input.items = itemsOf(value, completions);
    }
  };
  input.onDidChangeValue(complete);
  input.onDidAccept(async () => {
    const { label: expression, detail } = input.activeItems[0] ?? { label: input.value };
    if (detail === undefined && expression !== input.value) {
      // A completion: the user may continue the expression.
      input.value = expression;
      await complete();
      return;
    }
    input.hide();
    await vscode.commands.executeCommand(ADD, { variable: { evaluateName: input.value } });
  });
  input.onDidHide(() => input.dispose());
  input.show();
  await complete();
}

/** The text of the user, then its completions. */
function itemsOf(value: string, completions: readonly Completion[]): vscode.QuickPickItem[] {
  const entered = value.trim() ? [{ label: value, detail: "Add to Watch", alwaysShow: true }] : [];
  const completed = completions
    .map(({ label, start, length }) => {
      const from = start - 1 - HEAD.length;
      return value.slice(0, from) + label + value.slice(from + length);
    })
    .filter((label) => label !== value);
  return [...entered, ...completed.map((label) => ({ label, alwaysShow: true }))];
}
