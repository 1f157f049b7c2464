// Commands of a session: the steps back that the protocol has no button for, and the menu of a variable.
// All of them are lines of nncdbg's own console or requests of its own.

import * as path from "node:path";
import * as vscode from "vscode";

/** What VS Code gives a command of the menu of a variable. */
export interface VariableContext {
  sessionId?: string;
  variable?: { name: string; evaluateName?: string };
  /** What holds the variable: an item of a sequence has a name only with that. */
  container?: { name?: string; evaluateName?: string };
  /** Of a command that another view calls. */
  expression?: string;
}

export function registerSessionCommands(): vscode.Disposable[] {
  const register = vscode.commands.registerCommand;
  return [
    register("nncdbg.reverseStepInto", () => told(() => reverse("nncdbg/reverseStepIn"))),
    register("nncdbg.reverseStepOut", () => told(() => reverse("nncdbg/reverseStepOut"))),
    register("nncdbg.breakWhenNaN", (of?: VariableContext) => told(() => breakWhen(of, (value) => `any(isnan(${value}))`))),
    register("nncdbg.breakWhen", (of?: VariableContext) => told(() => breakWhen(of, askCondition))),
    register("nncdbg.saveAsNpy", (of?: VariableContext) => told(() => save(of))),
  ];
}

/** What the server refuses is said, not thrown: VS Code would call it a failed command. */
export async function told(action: () => Promise<void>): Promise<void> {
  try {
    await action();
  } catch (error) {
    void vscode.window.showErrorMessage((error as Error).message);
  }
}

export function currentSession(): vscode.DebugSession {
  const session = vscode.debug.activeDebugSession;
  if (session?.type !== "nncdbg") {
    throw new Error("no graph is being debugged");
  }
  return session;
}

async function reverse(request: string): Promise<void> {
  await currentSession().customRequest(request, { threadId: vscode.debug.activeStackItem?.threadId });
}

/** A line of nncdbg's console, as seen from the frame that is shown; what it answers. */
async function enter(expression: string): Promise<string> {
  const item = vscode.debug.activeStackItem;
  const frameId = item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
  const { result } = (await currentSession().customRequest("evaluate", { expression, context: "repl", frameId })) as { result: string };
  return result;
}

/** The value that a command is about; asked for where nothing says it. */
export async function valueOf(of: VariableContext | vscode.Uri | undefined): Promise<string | undefined> {
  const clicked = of instanceof vscode.Uri;
  if (of && !clicked && (of.variable || of.expression)) {
    return of.expression ?? of.variable?.evaluateName ?? itemOf(of);
  }
  const editor = vscode.window.activeTextEditor;
  const range = editor?.document.getWordRangeAtPosition(editor.selection.active, /%(?:[A-Za-z_][\w.]*::)?(?:"(?:[^"\\]|\\.)*"|[\w/.$]+)/);
  const value = range && editor?.document.getText(range);
  if (value && clicked) {
    return value;
  }
  return vscode.window.showInputBox({ prompt: "Which value?", value, placeHolder: "%h" });
}

function itemOf({ variable, container }: VariableContext): string | undefined {
  const item = /^\[\d+\]$/.test(variable?.name ?? "");
  return item && container?.evaluateName ? container.evaluateName + variable?.name : variable?.name;
}

type Condition = (value: string) => string | Thenable<string | undefined>;

async function breakWhen(of: VariableContext | undefined, condition: Condition): Promise<void> {
  const value = await valueOf(of);
  const when = value && (await condition(value));
  if (when) {
    const answer = await enter(`watch ${value} if ${when}`);
    void vscode.window.showInformationMessage(answer);
  }
}

function askCondition(value: string): Thenable<string | undefined> {
  return vscode.window.showInputBox({
    prompt: `Stop when ${value} is written and this condition is true`,
    value: `max(abs(${value})) > 10`,
    valueSelection: [0, -1],
  });
}

async function save(of: VariableContext | undefined): Promise<void> {
  const value = await valueOf(of);
  if (!value) {
    return;
  }
  const folder = currentSession().workspaceFolder?.uri ?? vscode.workspace.workspaceFolders?.[0]?.uri;
  const name = `${value.replace(/[^\w.-]+/g, "_").replace(/^_+|_+$/g, "") || "value"}.npy`;
  const defaultUri = folder ? vscode.Uri.joinPath(folder, name) : vscode.Uri.file(path.resolve(name));
  const file = await vscode.window.showSaveDialog({ defaultUri, filters: { "NumPy array": ["npy"] } });
  if (file) {
    void vscode.window.showInformationMessage(await enter(`save ${value} ${JSON.stringify(file.fsPath)}`));
  }
}
