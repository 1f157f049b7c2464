// What is shown in the text while stopped: values at the ends of lines, and what a hover evaluates.

import * as vscode from "vscode";

const TYPE = "nncdbg";
const VALUE = /%(?:"(?:[^"\\]|\\.)*"|[A-Za-z0-9_/.$]+)/;

interface LineText {
  line: number;
  text: string;
}

/** One request for the lines in view. */
export class InlineValues implements vscode.InlineValuesProvider {
  async provideInlineValues(
    document: vscode.TextDocument,
    view: vscode.Range,
    context: vscode.InlineValueContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineValue[]> {
    const session = vscode.debug.activeDebugSession;
    if (session?.type !== TYPE) {
      return [];
    }
    const asked = { frameId: context.frameId, start: view.start.line + 1, end: view.end.line + 1 };
    return (await linesOf(session, asked, token))
      .filter(({ line }) => line <= document.lineCount)
      .map(({ line, text }) => new vscode.InlineValueText(document.lineAt(line - 1).range, text));
  }
}

/** Of a stop that is over nothing is shown: its frame is gone by then, or the request was cancelled. */
async function linesOf(session: vscode.DebugSession, asked: { frameId: number }, token: vscode.CancellationToken) {
  try {
    return (await session.customRequest("nncdbg/lines", asked)).lines as LineText[];
  } catch (error) {
    const item = vscode.debug.activeStackItem;
    const there = item instanceof vscode.DebugStackFrame && item.frameId === asked.frameId;
    if (token.isCancellationRequested || !there) {
      return [];
    }
    throw error;
  }
}

export class EvaluatableValues implements vscode.EvaluatableExpressionProvider {
  provideEvaluatableExpression(
    document: vscode.TextDocument,
    position: vscode.Position,
  ): vscode.EvaluatableExpression | undefined {
    const range = document.getWordRangeAtPosition(position, VALUE);
    return range && new vscode.EvaluatableExpression(range, document.getText(range));
  }
}
