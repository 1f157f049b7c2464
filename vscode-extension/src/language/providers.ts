// One provider of the editor for each feature of the language server.

import * as vscode from "vscode";
import type * as lsp from "vscode-languageserver-types";
import * as convert from "./conversion";
import { dimsUnreadViews } from "./unreadViews";

/** The server's capabilities that have options. */
export interface ServerCapabilities {
  completionProvider: { triggerCharacters: string[] };
  signatureHelpProvider: { triggerCharacters: string[]; retriggerCharacters: string[] };
  codeActionProvider: { codeActionKinds: string[] };
  semanticTokensProvider: { legend: { tokenTypes: string[]; tokenModifiers: string[] } };
}

/** Sends a request, and converts its result; undefined if there is none or the request was canceled. */
export type SendRequest = <Result, Converted>(
  method: string,
  params: object,
  token: vscode.CancellationToken,
  convert: (result: Result) => Converted,
) => Promise<Converted | undefined>;

export function provide(selector: vscode.DocumentSelector, capabilities: ServerCapabilities, send: SendRequest): vscode.Disposable[] {
  return [
    ...typingProviders(selector, capabilities, send),
    ...navigationProviders(selector, send),
    ...callProviders(selector, send),
    ...structureProviders(selector, send),
    ...tokenProviders(selector, capabilities, send),
    ...editProviders(selector, capabilities, send),
  ];
}

const documentParams = (document: vscode.TextDocument) => ({ textDocument: { uri: document.uri.toString() } });

const positionParams = (document: vscode.TextDocument, position: vscode.Position) => ({
  ...documentParams(document),
  position: convert.protocolPosition(position),
});

const rangeParams = (document: vscode.TextDocument, range: vscode.Range) => ({
  ...documentParams(document),
  range: convert.protocolRange(range),
});

const each =
  <Item, Converted>(convertItem: (item: Item) => Converted) =>
  (items: Item[]): Converted[] =>
    items.map((item) => convertItem(item));

function typingProviders(selector: vscode.DocumentSelector, capabilities: ServerCapabilities, send: SendRequest): vscode.Disposable[] {
  const { languages } = vscode;
  return [
    languages.registerCompletionItemProvider(
      selector,
      {
        provideCompletionItems(document, position, token, { triggerKind, triggerCharacter }) {
          const params = { ...positionParams(document, position), context: { triggerKind: triggerKind + 1, triggerCharacter } };
          const list = ({ items, isIncomplete }: lsp.CompletionList) =>
            new vscode.CompletionList(items.map((item) => new convert.CompletionItem(item)), isIncomplete);
          return send("textDocument/completion", params, token, list);
        },
        async resolveCompletionItem(item: convert.CompletionItem, token) {
          const documentation = ({ documentation }: lsp.CompletionItem) => convert.editorMarkdown(documentation);
          item.documentation = await send("completionItem/resolve", item.sent, token, documentation);
          return item;
        },
      },
      ...capabilities.completionProvider.triggerCharacters,
    ),
    languages.registerSignatureHelpProvider(
      selector,
      {
        provideSignatureHelp(document, position, token, { triggerKind, triggerCharacter, isRetrigger }) {
          const params = { ...positionParams(document, position), context: { triggerKind, triggerCharacter, isRetrigger } };
          return send("textDocument/signatureHelp", params, token, convert.editorSignatureHelp);
        },
      },
      capabilities.signatureHelpProvider,
    ),
    languages.registerInlayHintsProvider(selector, {
      provideInlayHints: (document, range, token) => send("textDocument/inlayHint", rangeParams(document, range), token, each(convert.editorHint)),
    }),
  ];
}

function navigationProviders(selector: vscode.DocumentSelector, send: SendRequest): vscode.Disposable[] {
  const { languages } = vscode;
  return [
    languages.registerHoverProvider(selector, {
      provideHover: (document, position, token) => send("textDocument/hover", positionParams(document, position), token, convert.editorHover),
    }),
    languages.registerDefinitionProvider(selector, {
      provideDefinition: (document, position, token) =>
        send("textDocument/definition", positionParams(document, position), token, convert.editorLocation),
    }),
    languages.registerReferenceProvider(selector, {
      provideReferences: (document, position, context, token) =>
        send("textDocument/references", { ...positionParams(document, position), context }, token, each(convert.editorLocation)),
    }),
    languages.registerDocumentHighlightProvider(selector, {
      provideDocumentHighlights: (document, position, token) =>
        send("textDocument/documentHighlight", positionParams(document, position), token, each(convert.editorHighlight)),
    }),
    languages.registerDocumentLinkProvider(selector, {
      provideDocumentLinks: (document, token) => send("textDocument/documentLink", documentParams(document), token, each(convert.editorLink)),
    }),
  ];
}

function callProviders(selector: vscode.DocumentSelector, send: SendRequest): vscode.Disposable[] {
  const provider: vscode.CallHierarchyProvider = {
    prepareCallHierarchy: (document, position, token) =>
      send("textDocument/prepareCallHierarchy", positionParams(document, position), token, each((item: lsp.CallHierarchyItem) => new convert.CallItem(item))),
    provideCallHierarchyIncomingCalls: (item: convert.CallItem, token) =>
      send("callHierarchy/incomingCalls", { item: item.sent }, token, each(convert.editorIncomingCall)),
    provideCallHierarchyOutgoingCalls: (item: convert.CallItem, token) =>
      send("callHierarchy/outgoingCalls", { item: item.sent }, token, each(convert.editorOutgoingCall)),
  };
  return [vscode.languages.registerCallHierarchyProvider(selector, provider)];
}

function structureProviders(selector: vscode.DocumentSelector, send: SendRequest): vscode.Disposable[] {
  const { languages } = vscode;
  return [
    languages.registerDocumentSymbolProvider(selector, {
      provideDocumentSymbols: (document, token) => send("textDocument/documentSymbol", documentParams(document), token, each(convert.editorSymbol)),
    }),
    languages.registerWorkspaceSymbolProvider({
      provideWorkspaceSymbols: (query, token) => send("workspace/symbol", { query }, token, each(convert.editorWorkspaceSymbol)),
    }),
    languages.registerFoldingRangeProvider(selector, {
      provideFoldingRanges: (document, _context, token) =>
        send("textDocument/foldingRange", documentParams(document), token, (sent: lsp.FoldingRange[]) =>
          sent.filter(({ kind }) => kind !== "unread views" || dimsUnreadViews(document.uri)).map(convert.editorFolding),
        ),
    }),
    languages.registerSelectionRangeProvider(selector, {
      provideSelectionRanges(document, positions, token) {
        const params = { ...documentParams(document), positions: positions.map(convert.protocolPosition) };
        return send("textDocument/selectionRange", params, token, each(convert.editorSelection));
      },
    }),
    languages.registerCodeLensProvider(selector, {
      provideCodeLenses: (document, token) => send("textDocument/codeLens", documentParams(document), token, each(convert.editorLens)),
    }),
  ];
}

function tokenProviders(selector: vscode.DocumentSelector, capabilities: ServerCapabilities, send: SendRequest): vscode.Disposable[] {
  const { tokenTypes, tokenModifiers } = capabilities.semanticTokensProvider.legend;
  const legend = new vscode.SemanticTokensLegend(tokenTypes, tokenModifiers);
  return [
    vscode.languages.registerDocumentSemanticTokensProvider(
      selector,
      {
        provideDocumentSemanticTokens: (document, token) =>
          send("textDocument/semanticTokens/full", documentParams(document), token, convert.editorTokens),
        provideDocumentSemanticTokensEdits: (document, previousResultId, token) =>
          send("textDocument/semanticTokens/full/delta", { ...documentParams(document), previousResultId }, token, convert.editorTokenEdits),
      },
      legend,
    ),
    vscode.languages.registerDocumentRangeSemanticTokensProvider(
      selector,
      {
        provideDocumentRangeSemanticTokens: (document, range, token) =>
          send("textDocument/semanticTokens/range", rangeParams(document, range), token, convert.editorTokens),
      },
      legend,
    ),
  ];
}

function editProviders(selector: vscode.DocumentSelector, capabilities: ServerCapabilities, send: SendRequest): vscode.Disposable[] {
  const { languages } = vscode;
  const kinds = capabilities.codeActionProvider.codeActionKinds.map((kind) => vscode.CodeActionKind.Empty.append(kind));
  return [
    languages.registerCodeActionsProvider(
      selector,
      {
        provideCodeActions(document, range, { diagnostics, only }, token) {
          const context = { diagnostics: diagnostics.map(convert.protocolDiagnostic), only: only && [only.value] };
          return send("textDocument/codeAction", { ...rangeParams(document, range), context }, token, each(convert.editorAction));
        },
      },
      { providedCodeActionKinds: kinds },
    ),
    languages.registerDocumentFormattingEditProvider(selector, {
      async provideDocumentFormattingEdits(document, { tabSize, insertSpaces }, token) {
        const params = { ...documentParams(document), options: { tabSize, insertSpaces } };
        try {
          return await send("textDocument/formatting", params, token, each(convert.editorEdit));
        } catch (error) {
          // The editor does not show errors of formatting.
          void vscode.window.showWarningMessage((error as Error).message);
          return undefined;
        }
      },
    }),
    languages.registerRenameProvider(selector, {
      async prepareRename(document, position, token) {
        const target = ({ range, placeholder }: { range: lsp.Range; placeholder: string }) => ({ range: convert.editorRange(range), placeholder });
        const found = await send("textDocument/prepareRename", positionParams(document, position), token, target);
        if (!found) {
          throw new Error("there is no name at the cursor");
        }
        return found;
      },
      provideRenameEdits: (document, position, newName, token) =>
        send("textDocument/rename", { ...positionParams(document, position), newName }, token, convert.editorWorkspaceEdit),
    }),
  ];
}
