// Commands of a session: steps back that have no button in VS Code, and the menu of a variable.
// They are commands of the debug console or requests of nncdbg's own.

import * as path from "node:path";
import * as vscode from "vscode";

/** The name of a value in graph text, as `%h`, `%layer::h` or `%"a b"`. */
export const VALUE_NAME = /%(?:[A-Za-z_][\w.]*::)?(?:"(?:[^"\\]|\\.)*"|[\w/.$]+)/;

/** ms for which the status bar shows a message. */
const STATUS_TIME = 5000;

/** The argument of a command in the menu of a variable. */
export interface VariableContext {
  sessionId?: string;
  variable?: { name: string; evaluateName?: string };
  /** The parent: the name of an item in a sequence includes it. */
  container?: { name?: string; evaluateName?: string };
  /** Given by views of the extension. */
  expression?: string;
}

export function registerSessionCommands(): vscode.Disposable[] {
  const register = vscode.commands.registerCommand;
  return [
    register("nncdbg.reverseStepInto", () => withErrorMessage(() => reverse("nncdbg/reverseStepIn"))),
    register("nncdbg.reverseStepOut", () => withErrorMessage(() => reverse("nncdbg/reverseStepOut"))),
    register("nncdbg.breakWhenNaN", (of?: VariableContext) => withErrorMessage(() => breakWhen(of, (value) => `any(isnan(${value}))`))),
    register("nncdbg.breakWhen", (of?: VariableContext) => withErrorMessage(() => breakWhen(of, askCondition))),
    register("nncdbg.recordStep", () => withErrorMessage(recordStep)),
    register("nncdbg.saveAsNpy", (of?: VariableContext) => withErrorMessage(() => save(of))),
  ];
}

/** Shows an error of an action.  VS Code would add that the command failed. */
export async function withErrorMessage(action: () => Promise<void>): Promise<void> {
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

/** The frame that is selected in VS Code's call stack. */
export function selectedFrameId(): number | undefined {
  const item = vscode.debug.activeStackItem;
  return item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
}

/** The file name of a value in the workspace folder, as a default for a dialog. */
export function defaultFile(expression: string, suffix: string, session: vscode.DebugSession): vscode.Uri {
  const folder = session.workspaceFolder?.uri ?? vscode.workspace.workspaceFolders?.[0]?.uri;
  const name = `${expression.replace(/[^\w.-]+/g, "_").replace(/^_+|_+$/g, "") || "value"}.${suffix}`;
  return folder ? vscode.Uri.joinPath(folder, name) : vscode.Uri.file(path.resolve(name));
}

async function reverse(request: string): Promise<void> {
  await currentSession().customRequest(request, { threadId: vscode.debug.activeStackItem?.threadId });
}

/** Continues a training to the end of its step, recorded, and says so in the status bar. */
async function recordStep(): Promise<void> {
  const { text } = (await currentSession().customRequest("nncdbg/recordStep")) as { text: string };
  void vscode.window.setStatusBarMessage(`nncdbg: ${text}`, STATUS_TIME);
}

/** Runs a command of the debug console in the selected frame.  Returns its output. */
async function runConsoleCommand(expression: string): Promise<string> {
  const argument = { expression, context: "repl", frameId: selectedFrameId() };
  const { result } = (await currentSession().customRequest("evaluate", argument)) as { result: string };
  return result;
}

/** The value of a command: that of the menu or at the cursor, else one that the user enters. */
export async function valueOf(of: VariableContext | vscode.Uri | undefined): Promise<string | undefined> {
  const fromEditor = of instanceof vscode.Uri;
  if (of && !fromEditor && (of.variable || of.expression)) {
    return of.expression ?? of.variable?.evaluateName ?? itemOf(of);
  }
  const editor = vscode.window.activeTextEditor;
  const range = editor?.document.getWordRangeAtPosition(editor.selection.active, VALUE_NAME);
  const value = range && editor?.document.getText(range);
  if (value && fromEditor) {
    return value;
  }
  // A view that finishes loading takes the focus; the prompt stays.
  return vscode.window.showInputBox({ prompt: "Which value?", value, placeHolder: "%h", ignoreFocusOut: true });
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
    void vscode.window.showInformationMessage(await runConsoleCommand(`watch ${value} if ${when}`));
  }
}

function askCondition(value: string): Thenable<string | undefined> {
  return vscode.window.showInputBox({
    prompt: `Stop when ${value} is written and this condition is true`,
    value: `max(abs(${value})) > 10`,
    valueSelection: [0, -1],
    ignoreFocusOut: true,
  });
}

async function save(of: VariableContext | undefined): Promise<void> {
  const value = await valueOf(of);
  if (!value) {
    return;
  }
  const defaultUri = defaultFile(value, "npy", currentSession());
  const file = await vscode.window.showSaveDialog({ defaultUri, filters: { "NumPy array": ["npy"] } });
  if (file) {
    void vscode.window.showInformationMessage(await runConsoleCommand(`save ${value} ${JSON.stringify(file.fsPath)}`));
  }
}
