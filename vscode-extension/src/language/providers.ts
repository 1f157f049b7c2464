// What the editor asks, asked of the server: one provider for each feature.

import * as vscode from "vscode";
import type * as lsp from "vscode-languageserver-types";
import * as convert from "./conversion";

/** Of the server's capabilities those that say more than that they are there. */
export interface Offered {
  completionProvider: { triggerCharacters: string[] };
  signatureHelpProvider: { triggerCharacters: string[]; retriggerCharacters: string[] };
  codeActionProvider: { codeActionKinds: string[] };
  semanticTokensProvider: { legend: { tokenTypes: string[]; tokenModifiers: string[] } };
}

export type Ask = <Answer>(
  method: string,
  params: object,
  token: vscode.CancellationToken,
) => Promise<Answer | undefined>;

export function provide(selector: vscode.DocumentSelector, offered: Offered, ask: Ask): vscode.Disposable[] {
  return [
    ...whileTyping(selector, offered, ask),
    ...places(selector, ask),
    ...calls(selector, ask),
    ...outlines(selector, ask),
    ...colors(selector, offered, ask),
    ...changes(selector, offered, ask),
  ];
}

const about = (document: vscode.TextDocument) => ({ textDocument: { uri: document.uri.toString() } });

const at = (document: vscode.TextDocument, position: vscode.Position) => ({
  ...about(document),
  position: convert.protocolPosition(position),
});

const within = (document: vscode.TextDocument, range: vscode.Range) => ({
  ...about(document),
  range: convert.protocolRange(range),
});

function whileTyping(selector: vscode.DocumentSelector, offered: Offered, ask: Ask): vscode.Disposable[] {
  const { languages } = vscode;
  return [
    languages.registerCompletionItemProvider(
      selector,
      {
        async provideCompletionItems(document, position, token, { triggerKind, triggerCharacter }) {
          const context = { triggerKind: triggerKind + 1, triggerCharacter };
          const params = { ...at(document, position), context };
          const list = await ask<lsp.CompletionList>("textDocument/completion", params, token);
          return list && new vscode.CompletionList(list.items.map((i) => new convert.CompletionItem(i)), list.isIncomplete);
        },
        async resolveCompletionItem(item: convert.CompletionItem, token) {
          const resolved = await ask<lsp.CompletionItem>("completionItem/resolve", item.sent, token);
          item.documentation = convert.editorMarkdown(resolved?.documentation);
          return item;
        },
      },
      ...offered.completionProvider.triggerCharacters,
    ),
    languages.registerSignatureHelpProvider(
      selector,
      {
        async provideSignatureHelp(document, position, token, { triggerKind, triggerCharacter, isRetrigger }) {
          const context = { triggerKind, triggerCharacter, isRetrigger };
          const params = { ...at(document, position), context };
          const help = await ask<lsp.SignatureHelp>("textDocument/signatureHelp", params, token);
          return help && convert.editorSignatureHelp(help);
        },
      },
      offered.signatureHelpProvider,
    ),
    languages.registerInlayHintsProvider(selector, {
      async provideInlayHints(document, range, token) {
        const hints = await ask<lsp.InlayHint[]>("textDocument/inlayHint", within(document, range), token);
        return hints?.map(convert.editorHint);
      },
    }),
  ];
}

function places(selector: vscode.DocumentSelector, ask: Ask): vscode.Disposable[] {
  const { languages } = vscode;
  return [
    languages.registerHoverProvider(selector, {
      async provideHover(document, position, token) {
        const hover = await ask<lsp.Hover>("textDocument/hover", at(document, position), token);
        const content = convert.editorMarkdown(hover?.contents as lsp.MarkupContent | undefined);
        return content && new vscode.Hover(content, hover?.range && convert.editorRange(hover.range));
      },
    }),
    languages.registerDefinitionProvider(selector, {
      async provideDefinition(document, position, token) {
        const found = await ask<lsp.Location>("textDocument/definition", at(document, position), token);
        return found && convert.editorLocation(found);
      },
    }),
    languages.registerReferenceProvider(selector, {
      async provideReferences(document, position, context, token) {
        const params = { ...at(document, position), context };
        const found = await ask<lsp.Location[]>("textDocument/references", params, token);
        return found?.map(convert.editorLocation);
      },
    }),
    languages.registerDocumentHighlightProvider(selector, {
      async provideDocumentHighlights(document, position, token) {
        const params = at(document, position);
        const found = await ask<lsp.DocumentHighlight[]>("textDocument/documentHighlight", params, token);
        return found?.map(
          ({ range, kind }) => new vscode.DocumentHighlight(convert.editorRange(range), kind && kind - 1),
        );
      },
    }),
    languages.registerDocumentLinkProvider(selector, {
      async provideDocumentLinks(document, token) {
        const found = await ask<lsp.DocumentLink[]>("textDocument/documentLink", about(document), token);
        return found?.map(
          ({ range, target }) =>
            new vscode.DocumentLink(convert.editorRange(range), target ? vscode.Uri.parse(target) : undefined),
        );
      },
    }),
  ];
}

function calls(selector: vscode.DocumentSelector, ask: Ask): vscode.Disposable[] {
  const ranges = (found: lsp.Range[]) => found.map(convert.editorRange);
  return [
    vscode.languages.registerCallHierarchyProvider(selector, {
      async prepareCallHierarchy(document, position, token) {
        const params = at(document, position);
        const found = await ask<lsp.CallHierarchyItem[]>("textDocument/prepareCallHierarchy", params, token);
        return found?.map((item) => new convert.CallItem(item));
      },
      async provideCallHierarchyIncomingCalls(item: convert.CallItem, token) {
        const params = { item: item.sent };
        const found = await ask<lsp.CallHierarchyIncomingCall[]>("callHierarchy/incomingCalls", params, token);
        return found?.map(
          ({ from, fromRanges }) =>
            new vscode.CallHierarchyIncomingCall(new convert.CallItem(from), ranges(fromRanges)),
        );
      },
      async provideCallHierarchyOutgoingCalls(item: convert.CallItem, token) {
        const params = { item: item.sent };
        const found = await ask<lsp.CallHierarchyOutgoingCall[]>("callHierarchy/outgoingCalls", params, token);
        return found?.map(
          ({ to, fromRanges }) => new vscode.CallHierarchyOutgoingCall(new convert.CallItem(to), ranges(fromRanges)),
        );
      },
    }),
  ];
}

function outlines(selector: vscode.DocumentSelector, ask: Ask): vscode.Disposable[] {
  const { languages } = vscode;
  return [
    languages.registerDocumentSymbolProvider(selector, {
      async provideDocumentSymbols(document, token) {
        const found = await ask<lsp.DocumentSymbol[]>("textDocument/documentSymbol", about(document), token);
        return found?.map(convert.editorSymbol);
      },
    }),
    languages.registerWorkspaceSymbolProvider({
      async provideWorkspaceSymbols(query, token) {
        const found = await ask<lsp.SymbolInformation[]>("workspace/symbol", { query }, token);
        return found?.map(
          ({ name, kind, containerName, location }) =>
            new vscode.SymbolInformation(name, kind - 1, containerName ?? "", convert.editorLocation(location)),
        );
      },
    }),
    languages.registerFoldingRangeProvider(selector, {
      async provideFoldingRanges(document, _context, token) {
        const found = await ask<lsp.FoldingRange[]>("textDocument/foldingRange", about(document), token);
        return found?.map(convert.editorFolding);
      },
    }),
    languages.registerSelectionRangeProvider(selector, {
      async provideSelectionRanges(document, positions, token) {
        const params = { ...about(document), positions: positions.map(convert.protocolPosition) };
        const found = await ask<lsp.SelectionRange[]>("textDocument/selectionRange", params, token);
        return found?.map(convert.editorSelection);
      },
    }),
    languages.registerCodeLensProvider(selector, {
      async provideCodeLenses(document, token) {
        const found = await ask<lsp.CodeLens[]>("textDocument/codeLens", about(document), token);
        return found?.map(({ range, command }) => new vscode.CodeLens(convert.editorRange(range), command));
      },
    }),
  ];
}

function colors(selector: vscode.DocumentSelector, offered: Offered, ask: Ask): vscode.Disposable[] {
  const { tokenTypes, tokenModifiers } = offered.semanticTokensProvider.legend;
  const legend = new vscode.SemanticTokensLegend(tokenTypes, tokenModifiers);
  const whole = ({ data, resultId }: lsp.SemanticTokens) => new vscode.SemanticTokens(new Uint32Array(data), resultId);
  return [
    vscode.languages.registerDocumentSemanticTokensProvider(
      selector,
      {
        async provideDocumentSemanticTokens(document, token) {
          const found = await ask<lsp.SemanticTokens>("textDocument/semanticTokens/full", about(document), token);
          return found && whole(found);
        },
        async provideDocumentSemanticTokensEdits(document, previousResultId, token) {
          const params = { ...about(document), previousResultId };
          const method = "textDocument/semanticTokens/full/delta";
          const found = await ask<lsp.SemanticTokens | lsp.SemanticTokensDelta>(method, params, token);
          if (!found || "data" in found) {
            return found && whole(found);
          }
          const edits = found.edits.map(
            ({ start, deleteCount, data }) =>
              new vscode.SemanticTokensEdit(start, deleteCount, data && new Uint32Array(data)),
          );
          return new vscode.SemanticTokensEdits(edits, found.resultId);
        },
      },
      legend,
    ),
    vscode.languages.registerDocumentRangeSemanticTokensProvider(
      selector,
      {
        async provideDocumentRangeSemanticTokens(document, range, token) {
          const params = within(document, range);
          const found = await ask<lsp.SemanticTokens>("textDocument/semanticTokens/range", params, token);
          return found && whole(found);
        },
      },
      legend,
    ),
  ];
}

function changes(selector: vscode.DocumentSelector, offered: Offered, ask: Ask): vscode.Disposable[] {
  const { languages } = vscode;
  const kinds = offered.codeActionProvider.codeActionKinds.map((kind) => vscode.CodeActionKind.Empty.append(kind));
  return [
    languages.registerCodeActionsProvider(
      selector,
      {
        async provideCodeActions(document, range, { diagnostics, only }, token) {
          const context = { diagnostics: diagnostics.map(convert.protocolDiagnostic), only: only && [only.value] };
          const params = { ...within(document, range), context };
          const found = await ask<lsp.CodeAction[]>("textDocument/codeAction", params, token);
          return found?.map(convert.editorAction);
        },
      },
      { providedCodeActionKinds: kinds },
    ),
    languages.registerDocumentFormattingEditProvider(selector, {
      async provideDocumentFormattingEdits(document, { tabSize, insertSpaces }, token) {
        const params = { ...about(document), options: { tabSize, insertSpaces } };
        try {
          return (await ask<lsp.TextEdit[]>("textDocument/formatting", params, token))?.map(convert.editorEdit);
        } catch (error) {
          // The editor says nothing of its own about a text that cannot be formatted.
          void vscode.window.showWarningMessage((error as Error).message);
          return undefined;
        }
      },
    }),
    languages.registerRenameProvider(selector, {
      async prepareRename(document, position, token) {
        const params = at(document, position);
        const found = await ask<{ range: lsp.Range; placeholder: string }>("textDocument/prepareRename", params, token);
        if (!found) {
          throw new Error("there is no name at the cursor");
        }
        return { range: convert.editorRange(found.range), placeholder: found.placeholder };
      },
      async provideRenameEdits(document, position, newName, token) {
        const params = { ...at(document, position), newName };
        const edit = await ask<lsp.WorkspaceEdit>("textDocument/rename", params, token);
        return edit && convert.editorWorkspaceEdit(edit);
      },
    }),
  ];
}
