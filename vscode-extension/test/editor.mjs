// The part of the editor's API that the tested modules use: records, events, and fields set by a test.

/** A class whose constructor stores its arguments under these names. */
const record = (...names) =>
  class {
    constructor(...values) {
      names.forEach((name, index) => (this[name] = values[index]));
    }
  };

class Position {
  constructor(line, character) {
    Object.assign(this, { line, character });
  }
  translate(lines, characters) {
    return new Position(this.line + lines, this.character + characters);
  }
}

class Range {
  constructor(...ends) {
    const [start, end] = ends.length === 4 ? [new Position(ends[0], ends[1]), new Position(ends[2], ends[3])] : ends;
    Object.assign(this, { start, end });
  }
}

class Uri {
  constructor(scheme, path) {
    Object.assign(this, { scheme, path, fsPath: path });
  }
  static file = (path) => new Uri("file", path);
  static parse = (text) => new Uri(...text.split("://"));
  static joinPath = ({ scheme, path }, ...parts) => new Uri(scheme, [path, ...parts].join("/"));
  toString() {
    return `${this.scheme}://${this.path}`;
  }
}

class EventEmitter {
  listeners = new Set();
  event = (listener) => {
    this.listeners.add(listener);
    return { dispose: () => this.listeners.delete(listener) };
  };
  fire = (value) => [...this.listeners].forEach((each) => each(value));
  dispose = () => this.listeners.clear();
}

class MarkdownString {
  constructor(value = "") {
    this.value = value;
  }
  appendText(text) {
    this.value += text;
    return this;
  }
  appendMarkdown(text) {
    this.value += text;
    return this;
  }
}

class WorkspaceEdit {
  edits = new Map();
  set(uri, edits) {
    this.edits.set(uri.toString(), edits);
  }
}

class CodeActionKind {
  static Empty = new CodeActionKind("");
  constructor(value) {
    this.value = value;
  }
  append(part) {
    return new CodeActionKind(this.value ? `${this.value}.${part}` : part);
  }
}

const listen = () => ({ dispose: () => undefined });

/** Tests change and read its fields; modules see it as `vscode`. */
export const editor = {
  Position,
  Range,
  Uri,
  EventEmitter,
  MarkdownString,
  WorkspaceEdit,
  CodeActionKind,
  Location: record("uri", "range"),
  DebugStackFrame: record("session", "threadId", "frameId"),
  DebugAdapterInlineImplementation: record("implementation"),
  InlineValueText: record("range", "text"),
  Diagnostic: record("range", "message", "severity"),
  DiagnosticRelatedInformation: record("location", "message"),
  DiagnosticSeverity: { Error: 0, Warning: 1, Information: 2, Hint: 3 },
  TestMessage: record("message"),
  TestMessageStackFrame: record("label", "uri", "position"),
  TextEdit: record("range", "newText"),
  SnippetString: record("value"),
  CompletionItem: record("label", "kind"),
  SignatureHelp: record(),
  SignatureInformation: record("label", "documentation"),
  ParameterInformation: record("label", "documentation"),
  DocumentSymbol: record("name", "detail", "kind", "range", "selectionRange"),
  CallHierarchyItem: record("kind", "name", "detail", "uri", "range", "selectionRange"),
  CallHierarchyIncomingCall: record("from", "fromRanges"),
  SelectionRange: record("range", "parent"),
  FoldingRange: record("start", "end", "kind"),
  FoldingRangeKind: { Comment: 1, Imports: 2, Region: 3 },
  Hover: record("contents", "range"),
  CodeAction: record("title", "kind"),
  SemanticTokens: record("data", "resultId"),
  SemanticTokensEdit: record("start", "deleteCount", "data"),
  SemanticTokensEdits: record("edits", "resultId"),
  TestRunRequest: record("include"),
  QuickPickItemKind: { Separator: -1 },
  CodeLens: record("range", "command"),
  TreeItem: record("label", "collapsibleState"),
  TreeItemCollapsibleState: { None: 0, Collapsed: 1, Expanded: 2 },
  ThemeIcon: record("id", "color"),
  ThemeColor: record("id"),
  DecorationRangeBehavior: { ClosedClosed: 1 },
  debug: {
    activeDebugSession: { type: "nncdbg", id: "active" },
    activeStackItem: undefined,
    onDidTerminateDebugSession: listen,
    onDidChangeActiveDebugSession: listen,
    asDebugSourceUri: ({ sourceReference }, { id }) => new Uri("debug", `${id}/${sourceReference}`),
  },
  commands: {
    executed: [],
    executeCommand: async (...command) => void editor.commands.executed.push(command),
  },
  window: {
    registerWebviewViewProvider: listen,
    createTextEditorDecorationType: (options) => ({ ...options, dispose: () => undefined }),
    tabGroups: { activeTabGroup: {} },
    visibleTextEditors: [],
  },
  workspace: { isTrusted: true, asRelativePath: (path) => path.replace("/work/", "") },
  extensions: { all: [] },
};

globalThis.vscode = editor;
