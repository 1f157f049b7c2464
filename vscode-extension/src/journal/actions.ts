// A debug session at a step of a run, and a fork of it in a terminal.

import * as path from "node:path";
import * as vscode from "vscode";
import { readyPython } from "../environment/python";
import { addressOf } from "./log";

/** Debugs a run, stopped at the start of a step. */
export async function openStep(file: string, run: number, step: number): Promise<void> {
  const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(file));
  const name = `Debug ${addressOf(path.basename(file), run, step)}`;
  const launch = { type: "nncdbg", request: "launch", name, program: addressOf(file, run, step), stopOnEntry: true };
  await vscode.debug.startDebugging(folder, launch);
}

/** Types the command that forks a run into a terminal: the user completes and runs it. */
export async function typeFork(file: string, run: number, step: number): Promise<void> {
  const cwd = path.dirname(file);
  const python = await readyPython(vscode.Uri.file(cwd));
  const found = [path.dirname(python), process.env.PATH].filter(Boolean).join(path.delimiter);
  const terminal = vscode.window.createTerminal({ name: "nncdbg", cwd, env: { PATH: found } });
  terminal.show();
  terminal.sendText(forkCommand(path.basename(file), run, step), false);
}

export function forkCommand(file: string, run: number, step: number): string {
  const named = file.startsWith("-") ? `./${file}` : file;
  return `nncdbg run ${quoted(addressOf(named, run, step))} --fork --set NAME=VALUE`;
}

function quoted(word: string): string {
  return /^\w[\w./@#-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
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
