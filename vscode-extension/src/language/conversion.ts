// Conversion between records of the protocol and of the editor.  Most enumerations of the protocol start at 1, those
// of the editor at 0.

import * as vscode from "vscode";
import type * as lsp from "vscode-languageserver-types";

export const protocolPosition = ({ line, character }: vscode.Position): lsp.Position => ({ line, character });

export const protocolRange = ({ start, end }: vscode.Range): lsp.Range => ({
  start: protocolPosition(start),
  end: protocolPosition(end),
});

export const editorPosition = ({ line, character }: lsp.Position): vscode.Position => new vscode.Position(line, character);

export const editorRange = ({ start, end }: lsp.Range): vscode.Range =>
  new vscode.Range(editorPosition(start), editorPosition(end));

export const editorLocation = ({ uri, range }: lsp.Location): vscode.Location => new vscode.Location(vscode.Uri.parse(uri), editorRange(range));

export const editorEdit = ({ range, newText }: lsp.TextEdit): vscode.TextEdit => new vscode.TextEdit(editorRange(range), newText);

export function editorMarkdown(content: lsp.MarkupContent | string | undefined): vscode.MarkdownString | undefined {
  return content === undefined ? undefined : new vscode.MarkdownString(typeof content === "string" ? content : content.value);
}

export function editorDiagnostic(sent: lsp.Diagnostic): vscode.Diagnostic {
  const severity = (sent.severity ?? 1) - 1;
  const message = typeof sent.message === "string" ? sent.message : sent.message.value;
  return Object.assign(new vscode.Diagnostic(editorRange(sent.range), message, severity), {
    source: sent.source,
    // The editor shows a code that is undefined.
    ...(sent.code === undefined ? {} : { code: sent.code }),
    tags: sent.tags,
    relatedInformation: sent.relatedInformation?.map(
      (each) => new vscode.DiagnosticRelatedInformation(editorLocation(each.location), each.message),
    ),
  });
}

export function protocolDiagnostic(shown: vscode.Diagnostic): lsp.Diagnostic {
  const { message, source, code } = shown;
  return {
    range: protocolRange(shown.range),
    message,
    source,
    code: typeof code === "object" ? code.value : code,
    severity: (shown.severity + 1) as lsp.DiagnosticSeverity,
  };
}

/** Edits of documents; the server does not create or delete files. */
export function editorWorkspaceEdit(sent: lsp.WorkspaceEdit): vscode.WorkspaceEdit {
  const edit = new vscode.WorkspaceEdit();
  for (const [uri, edits] of Object.entries(sent.changes ?? {})) {
    edit.set(vscode.Uri.parse(uri), edits.map(editorEdit));
  }
  for (const change of sent.documentChanges ?? []) {
    if ("edits" in change) {
      edit.set(vscode.Uri.parse(change.textDocument.uri), (change.edits as lsp.TextEdit[]).map(editorEdit));
    }
  }
  return edit;
}

/** An item with the one that the server sent, which identifies it in a request for its documentation. */
export class CompletionItem extends vscode.CompletionItem {
  constructor(readonly sent: lsp.CompletionItem) {
    super(sent.label, sent.kind && sent.kind - 1);
    const edit = sent.textEdit as lsp.TextEdit;
    this.range = editorRange(edit.range);
    this.insertText = sent.insertTextFormat === 2 ? new vscode.SnippetString(edit.newText) : edit.newText;
    this.detail = sent.detail;
    this.sortText = sent.sortText;
    this.filterText = sent.filterText;
    this.documentation = editorMarkdown(sent.documentation);
  }
}

export function editorSignatureHelp(sent: lsp.SignatureHelp): vscode.SignatureHelp {
  return Object.assign(new vscode.SignatureHelp(), {
    activeSignature: sent.activeSignature ?? 0,
    activeParameter: sent.activeParameter ?? 0,
    signatures: sent.signatures.map((each) =>
      Object.assign(new vscode.SignatureInformation(each.label, editorMarkdown(each.documentation)), {
        parameters: each.parameters?.map(
          ({ label, documentation }) => new vscode.ParameterInformation(label, editorMarkdown(documentation)),
        ),
      }),
    ),
  });
}

export function editorSymbol(sent: lsp.DocumentSymbol): vscode.DocumentSymbol {
  const { name, detail, kind, range, selectionRange } = sent;
  return Object.assign(
    new vscode.DocumentSymbol(name, detail ?? "", kind - 1, editorRange(range), editorRange(selectionRange)),
    { children: sent.children?.map(editorSymbol) ?? [] },
  );
}

export function editorAction(sent: lsp.CodeAction): vscode.CodeAction {
  const kind = sent.kind === undefined ? undefined : vscode.CodeActionKind.Empty.append(sent.kind);
  return Object.assign(new vscode.CodeAction(sent.title, kind), {
    edit: sent.edit && editorWorkspaceEdit(sent.edit),
    diagnostics: sent.diagnostics?.map(editorDiagnostic),
    isPreferred: sent.isPreferred,
  });
}

export function editorSelection({ range, parent }: lsp.SelectionRange): vscode.SelectionRange {
  return new vscode.SelectionRange(editorRange(range), parent && editorSelection(parent));
}

export function editorHint({ position, label, kind, textEdits }: lsp.InlayHint): vscode.InlayHint {
  return Object.assign(new vscode.InlayHint(editorPosition(position), label as string, kind), {
    textEdits: textEdits?.map(editorEdit),
  });
}

/** The editor folds imports when it opens a text, by a default of this extension. */
const FOLDINGS: Record<string, vscode.FoldingRangeKind> = { comment: 1, imports: 2, region: 3, "unread views": 2 };

export function editorFolding({ startLine, endLine, kind }: lsp.FoldingRange): vscode.FoldingRange {
  return new vscode.FoldingRange(startLine, endLine, kind === undefined ? undefined : FOLDINGS[kind]);
}

/** An item with the one that the server sent, which identifies it in a request for its calls. */
export class CallItem extends vscode.CallHierarchyItem {
  constructor(readonly sent: lsp.CallHierarchyItem) {
    const place = [vscode.Uri.parse(sent.uri), editorRange(sent.range), editorRange(sent.selectionRange)] as const;
    super(sent.kind - 1, sent.name, sent.detail ?? "", ...place);
  }
}

export function editorIncomingCall({ from, fromRanges }: lsp.CallHierarchyIncomingCall): vscode.CallHierarchyIncomingCall {
  return new vscode.CallHierarchyIncomingCall(new CallItem(from), fromRanges.map(editorRange));
}

export function editorOutgoingCall({ to, fromRanges }: lsp.CallHierarchyOutgoingCall): vscode.CallHierarchyOutgoingCall {
  return new vscode.CallHierarchyOutgoingCall(new CallItem(to), fromRanges.map(editorRange));
}

export function editorHover({ contents, range }: lsp.Hover): vscode.Hover | undefined {
  const markdown = editorMarkdown(contents as lsp.MarkupContent | undefined);
  return markdown && new vscode.Hover(markdown, range && editorRange(range));
}

export const editorHighlight = ({ range, kind }: lsp.DocumentHighlight): vscode.DocumentHighlight =>
  new vscode.DocumentHighlight(editorRange(range), kind && kind - 1);

export const editorLink = ({ range, target }: lsp.DocumentLink): vscode.DocumentLink =>
  new vscode.DocumentLink(editorRange(range), target ? vscode.Uri.parse(target) : undefined);

export const editorLens = ({ range, command }: lsp.CodeLens): vscode.CodeLens => new vscode.CodeLens(editorRange(range), command);

export const editorWorkspaceSymbol = ({ name, kind, containerName, location }: lsp.SymbolInformation): vscode.SymbolInformation =>
  new vscode.SymbolInformation(name, kind - 1, containerName ?? "", editorLocation(location));

export const editorTokens = ({ data, resultId }: lsp.SemanticTokens): vscode.SemanticTokens =>
  new vscode.SemanticTokens(new Uint32Array(data), resultId);

/** The edits since the last tokens, or all tokens. */
export function editorTokenEdits(sent: lsp.SemanticTokens | lsp.SemanticTokensDelta): vscode.SemanticTokens | vscode.SemanticTokensEdits {
  if ("data" in sent) {
    return editorTokens(sent);
  }
  const edit = ({ start, deleteCount, data }: lsp.SemanticTokensEdit) => new vscode.SemanticTokensEdit(start, deleteCount, data && new Uint32Array(data));
  return new vscode.SemanticTokensEdits(sent.edits.map(edit), sent.resultId);
}
