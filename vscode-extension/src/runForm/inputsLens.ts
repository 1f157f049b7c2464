// A code lens above the entry graph: the data of its inputs in the next run, which the form "Run with" changes.

import * as path from "node:path";
import * as vscode from "vscode";
import { VALUE_NAME } from "../session/commands";
import { asModel } from "../session/configurations";
import { programOf } from "../model/listing";
import { fieldOf } from "./fields";
import type { LastRuns } from "./lastRuns";

/** Inputs that a lens names. */
const MOST = 3;
/** The lines in which the header of a graph ends. */
const HEADER_LINES = 200;

export class InputsLens implements vscode.CodeLensProvider {
  readonly onDidChangeCodeLenses: vscode.Event<void>;

  constructor(private readonly runs: LastRuns) {
    this.onDidChangeCodeLenses = runs.onDidChange;
  }

  async provideCodeLenses(document: vscode.TextDocument): Promise<vscode.CodeLens[]> {
    const entry = entryOf(document);
    if (!entry?.inputs.length) {
      return [];
    }
    const program = programOf(await asModel(document.uri.fsPath));
    const isFolder = program !== (await asModel(document.uri.fsPath));
    const chosen = this.runs.choices(program)?.inputs ?? {};
    const shown = entry.inputs.slice(0, MOST).map((name) => `${name} = ${dataOf(chosen[name], isFolder)}`);
    const title = `inputs: ${shown.join(", ")}${entry.inputs.length > MOST ? `, and ${entry.inputs.length - MOST} more` : ""} · change`;
    const command = { title, command: "nncdbg.runWith", arguments: [document.uri], tooltip: "Choose inputs, backend and allocator. F5 repeats the last run." };
    return [new vscode.CodeLens(new vscode.Range(entry.line, 0, entry.line, 0), command)];
  }
}

/** The line of the first graph, which is the entry, and the names of its inputs. */
function entryOf(document: vscode.TextDocument): { line: number; inputs: string[] } | undefined {
  const lines = document.getText().split("\n");
  const line = lines.findIndex((text) => text.startsWith("graph @"));
  if (line < 0) {
    return undefined;
  }
  const [header] = lines.slice(line, line + HEADER_LINES).join("\n").split("->", 1);
  const names = header.match(new RegExp(VALUE_NAME, "g")) ?? [];
  return { line, inputs: names.map((name) => name.slice(1).replace(/^"(.*)"$/s, "$1")) };
}

function dataOf(text: string | undefined, isFolder: boolean): string {
  const { kind, detail } = fieldOf(text ?? "");
  return kind === "file" || kind === "value" ? path.basename(detail) : kind || (isFolder ? "from the folder" : "random");
}
