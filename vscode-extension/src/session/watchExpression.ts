// Adds a watch expression with completion, which the input under *Watch* does not have.

import * as vscode from "vscode";
import { currentSession } from "./commands";

interface Target {
  label: string;
  start: number;
  length: number;
}

/** Completion is asked for as of an argument of `print`: an expression, no command. */
const HEAD = "print ";
const ADD = "debug.addToWatchExpressions";

/** Asks for an expression, and adds it under *Watch*. */
export async function addWatch(): Promise<void> {
  const session = currentSession();
  const item = vscode.debug.activeStackItem;
  const frameId = item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
  const input = vscode.window.createQuickPick();
  input.placeholder = "An expression, such as max(abs(%h))";
  const complete = async () => {
    const { value } = input;
    const asked = { text: HEAD + value, column: HEAD.length + value.length + 1, frameId };
    const found = await session.customRequest("completions", asked).then(({ targets }) => targets as Target[], () => []);
    if (value === input.value) {
      input.items = itemsOf(value, found);
    }
  };
  input.onDidChangeValue(complete);
  input.onDidAccept(async () => {
    const { label: expression, detail } = input.activeItems[0] ?? { label: input.value };
    if (detail === undefined && expression !== input.value) {
      // A completion: the expression may go on.
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

/** What has been typed, then what it can become. */
function itemsOf(value: string, targets: readonly Target[]): vscode.QuickPickItem[] {
  const typed = value.trim() ? [{ label: value, detail: "Add to Watch", alwaysShow: true }] : [];
  const completed = targets
    .map(({ label, start, length }) => {
      const from = start - 1 - HEAD.length;
      return value.slice(0, from) + label + value.slice(from + length);
    })
    .filter((label) => label !== value);
  return [...typed, ...completed.map((label) => ({ label, alwaysShow: true }))];
}
