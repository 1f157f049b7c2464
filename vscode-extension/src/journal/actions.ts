// A debug session at a step of a run, and a fork of it as a task.

import * as path from "node:path";
import * as vscode from "vscode";
import { ENVIRONMENT, literal, NNCDBG } from "../environment/process";
import { readyPython } from "../environment/python";
import { addressOf } from "./log";

/** Debugs a run, stopped at the start of a step. */
export async function openStep(file: string, run: number, step: number): Promise<void> {
  const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(file));
  const name = `Debug ${addressOf(path.basename(file), run, step)}`;
  const launch = { type: "nncdbg", request: "launch", name, program: literal(addressOf(file, run, step)), stopOnEntry: true };
  await vscode.debug.startDebugging(folder, launch);
}

/** Starts a fork of a run as a task, with the changes that the user enters.  No text is typed into a terminal. */
export async function forkRun(file: string, run: number, step: number): Promise<void> {
  const cwd = path.dirname(file);
  const prompt = "What changes in the fork? Without a change, it repeats the run.";
  const placeHolder = "lr=1e-4 %w=0";
  const entered = await vscode.window.showInputBox({ prompt, placeHolder, validateInput: changesError, ignoreFocusOut: true });
  if (entered === undefined) {
    return;
  }
  const uri = vscode.Uri.file(file);
  const python = await readyPython(uri);
  const execution = new vscode.ProcessExecution(python, forkArguments(path.basename(file), run, step, entered), { cwd, env: ENVIRONMENT });
  const scope = vscode.workspace.getWorkspaceFolder(uri) ?? vscode.TaskScope.Workspace;
  await vscode.tasks.executeTask(new vscode.Task({ type: "process" }, scope, `Fork of run ${run} at step ${step}`, "nncdbg", execution, []));
}

/** The arguments of Python that fork a run.  Throws for a name that a task does not take as it is. */
export function forkArguments(file: string, run: number, step: number, changes: string): string[] {
  const named = file.startsWith("-") ? `./${file}` : file;
  return [...NNCDBG, "run", literal(addressOf(named, run, step)), "--fork", ...changesOf(changes).map((each) => `--set=${literal(each)}`)];
}

/** The changes in a text, such as `lr=1e-4 %w=[1, 2]`: each begins with a name. */
function changesOf(text: string): string[] {
  return text.trim() === "" ? [] : text.trim().split(/\s+(?=[^\s=,[\]]+=)/);
}

function changesError(text: string): string {
  return changesOf(text).every((each) => /^[^\s=]+=\S/.test(each)) ? "" : "Enter changes as NAME=VALUE, separated by spaces.";
}

/** Reads a step of a run from the user; undefined if the user cancels. */
export async function askStep(prompt: string, steps: number): Promise<number | undefined> {
  const validateInput = (text: string) => (isStep(text, steps) ? "" : `Enter a number from 0 to ${steps}.`);
  const text = await vscode.window.showInputBox({ prompt, value: String(steps), validateInput, ignoreFocusOut: true });
  return text === undefined ? undefined : Number(text);
}

function isStep(text: string, steps: number): boolean {
  return /^\s*\d+\s*$/.test(text) && Number(text) <= steps;
}
