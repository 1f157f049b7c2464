// A Python program that an attach starts under debugpy.  The two sessions begin and end together.

import * as vscode from "vscode";

const TYPE = "debugpy";
const EXTENSION = "ms-python.debugpy";

interface Debugger {
  type?: string;
}

interface Manifest {
  contributes?: { debuggers?: Debugger[] };
}

/** Whether an extension that debugs Python is there. */
export function debugsPython(): boolean {
  const debuggers = (each: vscode.Extension<unknown>): Debugger[] => (each.packageJSON as Manifest).contributes?.debuggers ?? [];
  return vscode.extensions.all.some((each) => debuggers(each).some(({ type }) => type === TYPE));
}

export async function offerDebugpy(program: string): Promise<void> {
  const words = `cannot start ${program} under debugpy: install or enable the Python Debugger extension (${EXTENSION}).`;
  if ((await vscode.window.showErrorMessage(words, "Show Extension")) === "Show Extension") {
    await vscode.commands.executeCommand("workbench.extensions.search", `@id:${EXTENSION}`);
  }
}

/** Starts the program of an attach configuration; the signal is aborted when it has ended.  The end of `session` ends it. */
export async function startPython(session: vscode.DebugSession): Promise<AbortSignal> {
  const { debugpy, name } = session.configuration;
  const over = new AbortController();
  let python: vscode.DebugSession | undefined;
  const started = vscode.debug.onDidStartDebugSession((each) => {
    if (each.parentSession?.id === session.id) {
      python = each;
    }
  });
  const ended = vscode.debug.onDidTerminateDebugSession((each) => {
    if (each.id === python?.id) {
      over.abort();
    } else if (each.id === session.id && python && !over.signal.aborted) {
      void vscode.debug.stopDebugging(python);
    }
  });
  over.signal.addEventListener("abort", () => [started, ended].forEach((each) => void each.dispose()));
  const configuration = { type: TYPE, request: "launch", name: `${name}: Python`, console: "integratedTerminal", ...debugpy };
  if (!(await vscode.debug.startDebugging(session.workspaceFolder, configuration, { parentSession: session }))) {
    over.abort();
    throw new Error(`debugpy did not start ${debugpy.program}: read the error message of the Python Debugger extension`);
  }
  return over.signal;
}
