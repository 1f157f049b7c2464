// Folds of the listing of a running program, a text that the language server does not see.

import * as vscode from "vscode";

/** The blocks of the lines; the states, which are the longest, are of the kind that the editor folds on opening. */
export function listingFolds(lines: readonly string[]): vscode.FoldingRange[] {
  const open: number[] = [];
  const folds: vscode.FoldingRange[] = [];
  lines.forEach((line, number) => {
    const text = line.trim();
    const first = text.startsWith("}") ? open.pop() : undefined;
    if (first !== undefined && number - 1 > first) {
      const kind = /^\s*states\b/.test(lines[first] ?? "") ? vscode.FoldingRangeKind.Imports : vscode.FoldingRangeKind.Region;
      folds.push(new vscode.FoldingRange(first, number - 1, kind));
    }
    if (text.endsWith("{") && !text.startsWith("#")) {
      open.push(number);
    }
  });
  return folds.sort((one, other) => one.start - other.start);
}

export const LISTING_FOLDS: vscode.FoldingRangeProvider = {
  provideFoldingRanges: (document) => listingFolds(document.getText().split(/\r?\n/)),
};
