// One tensor view: a panel, what it looks at, and the requests that it makes.

import * as path from "node:path";
import * as vscode from "vscode";
import { bundled, documentOf } from "../pages/page";
import type { Sessions, Told } from "../views/sessionEvents";
import { Early, FromView, Question, SavedFormat, Standing, ToLibrary, ToView, keyOf } from "./messages";

/** Answers of one moment that are kept, for a view that was hidden and is shown again. */
const KEPT = 12;
/** ms of a move that is not worth a word: a step. */
const SHORT = 150;
/** Letters of a tab. */
const TITLE = 36;
const FORMATS: Record<SavedFormat, Record<string, string[]>> = { csv: { "CSV file": ["csv"] }, png: { "PNG picture": ["png"] } };
const MOVES = new Set(["stopped", "invalidated", "terminated", "over"]);

export class TensorPanel implements vscode.Disposable {
  static readonly type = "nncdbg.tensor";
  private readonly panel: vscode.WebviewPanel;
  private readonly listeners: vscode.Disposable[];
  private readonly underWay = new Map<number | string, () => void>();
  /** What picture the view has asked for last, with the version that it has now. */
  private picture: Question | undefined;
  /** The view is to hear of this moment when its picture is there. */
  private untold = false;
  /** The same, asked again at this stop before the view does so. */
  private early: { key: string; answer: Promise<unknown> } | undefined;
  private pinned = true;
  private standing: Standing = "still";
  private soon: NodeJS.Timeout | undefined;
  private moment = 0;
  private place = "";
  private kept = { moment: -1, place: "", answers: new Map<string, unknown>() };

  constructor(
    private readonly extension: vscode.Uri,
    private readonly sessions: Sessions,
    private session: vscode.DebugSession,
    readonly expression: string,
    private frameId: number | undefined,
    column: vscode.ViewColumn,
  ) {
    this.panel = vscode.window.createWebviewPanel(
      TensorPanel.type,
      titleOf(expression),
      { viewColumn: column, preserveFocus: false },
      { enableScripts: true, localResourceRoots: [] },
    );
    this.place = sessions.placeOf(session);
    this.listeners = [
      this.panel.webview.onDidReceiveMessage((message: FromView) => this.hear(message)),
      sessions.onTold((told) => this.follow(told)),
    ];
    void documentOf(extension, "tensor", "Tensor").then((html) => (this.panel.webview.html = html));
  }

  onClosed(closed: () => void): void {
    this.listeners.push(
      this.panel.onDidDispose(() => {
        this.dispose();
        closed();
      }),
    );
  }

  get column(): vscode.ViewColumn | undefined {
    return this.panel.viewColumn;
  }

  /** Shows the panel, which looks at its value from this frame from now on. */
  show(session: vscode.DebugSession, frameId: number | undefined): void {
    this.session = session;
    this.frameId = frameId;
    this.panel.reveal();
    this.anew("still");
  }

  isOf(session: vscode.DebugSession, expression: string): boolean {
    return this.session.id === session.id && this.expression === expression;
  }

  dispose(): void {
    clearTimeout(this.soon);
    this.abandonAll();
    this.listeners.forEach((each) => void each.dispose());
    this.panel.dispose();
  }

  // -- the session -------------------------------------------------------------------------------

  private follow({ session, event }: Told): void {
    if (event === "stopped" && this.pinned && this.standing === "over") {
      // The next run of what is debugged: values are looked at from where it stands.
      this.session = session;
      this.frameId = undefined;
    }
    if (session.id !== this.session.id) {
      return;
    }
    if (event === "stack") {
      this.placed();
    } else if (event === "continued") {
      this.standing = "moving";
      this.soon = setTimeout(() => this.tellSubject(), SHORT);
    } else if (MOVES.has(event)) {
      this.anew(event === "terminated" || event === "over" ? "over" : "still");
    }
  }

  /** The values may be other ones than before. */
  private anew(standing: Standing): void {
    clearTimeout(this.soon);
    this.abandonAll();
    this.standing = standing;
    this.moment++;
    if (standing === "still" && this.pinned) {
      void this.askEarly();
    } else {
      this.tellSubject();
    }
  }

  /** Asks for the picture that is shown, so that the view is told the moment and its picture at once. */
  private async askEarly(): Promise<void> {
    const { moment, picture } = this;
    this.untold = true;
    this.picture = undefined;
    const early = picture ? await this.answeredEarly(picture) : [];
    await this.sessions.shown(this.session);
    if (moment === this.moment && this.untold) {
      this.tellSubject(early);
    }
  }

  private answeredEarly(picture: Question): Promise<Early[]> {
    const key = keyOf(picture);
    const answer = this.ask(key, picture);
    this.early = { key, answer };
    // Of what went wrong the view hears when it asks.
    return answer.then(
      (body) => [{ key, body }],
      () => [],
    );
  }

  private abandonAll(): void {
    this.underWay.forEach((abandon) => abandon());
    this.underWay.clear();
    this.early = undefined;
  }

  private tellSubject(early: Early[] = []): void {
    const { expression, pinned, standing, moment, place } = this;
    const old = (!pinned || standing === "over") && this.kept.answers.size > 0;
    const kept = old ? { moment: this.kept.moment, place: this.kept.place } : undefined;
    this.untold = false;
    this.tell({ kind: "subject", expression, pinned, standing, moment, place, kept, early });
  }

  private tell(message: ToView | ToLibrary): void {
    void this.panel.webview.postMessage(message);
  }

  // -- the view ----------------------------------------------------------------------------------

  private hear(message: FromView): void {
    switch (message.kind) {
      case "ready":
        this.tellSubject();
        break;
      case "ask":
        void this.answer(message.id, message, message.kept);
        break;
      case "abandon":
        this.underWay.get(message.id)?.();
        break;
      case "pin":
        this.pinned = message.pinned;
        this.tellSubject();
        break;
      case "plot":
        void bundled(this.extension, "uplot.js").then((text) => this.tell({ kind: "library", text }));
        break;
      case "save":
        void this.save(message.format, message.data);
        break;
      case "here":
        this.fromHere();
        break;
      case "set":
        void this.set(message.index, message.value);
        break;
    }
  }

  private fromHere(): void {
    const item = vscode.debug.activeStackItem;
    const session = vscode.debug.activeDebugSession;
    this.session = session?.type === "nncdbg" ? session : this.session;
    this.frameId = item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
    this.anew(this.standing);
  }

  private async answer(id: number, question: Question, kept: boolean): Promise<void> {
    const asked = keptKeyOf(question);
    try {
      const early = this.early?.key === keyOf(question) ? this.early.answer : undefined;
      const body = kept && this.kept.answers.has(asked) ? this.kept.answers.get(asked) : await (early ?? this.ask(id, question));
      this.tell({ kind: "answer", id, body });
    } catch (error) {
      this.tell({ kind: "failed", id, message: (error as Error).message });
    }
  }

  private async ask(id: number | string, question: Question): Promise<unknown> {
    const { moment } = this;
    const { request, known } = question;
    const asked = { ...question.arguments, known, frameId: this.frameId };
    const { body, abandon } = this.sessions.ask(this.session, request, asked);
    this.underWay.set(id, abandon);
    try {
      const answer = await body;
      this.keep(moment, question, answer);
      return answer;
    } finally {
      this.underWay.delete(id);
    }
  }

  private keep(moment: number, question: Question, answer: unknown): void {
    const key = keptKeyOf(question);
    const { version, unchanged } = answer as { version?: number; unchanged?: boolean };
    if (moment === this.moment && version !== undefined) {
      const { request, arguments: asked } = question;
      this.picture = { request, arguments: asked, known: version };
    }
    const before = this.kept;
    if (before.moment !== moment) {
      this.kept = { moment, place: this.place, answers: new Map() };
    }
    const { answers } = this.kept;
    // What has not changed was answered in full at an earlier moment.
    const whole = unchanged ? (before.answers.get(key) ?? answer) : answer;
    answers.delete(key);
    answers.set(key, whole);
    if (answers.size > KEPT) {
      answers.delete(answers.keys().next().value as string);
    }
  }

  /** VS Code has just been told where the program stands. */
  private placed(): void {
    const place = this.sessions.placeOf(this.session);
    if (this.standing === "over" || place === this.place) {
      return;
    }
    this.place = place;
    if (this.standing === "still" && !this.untold) {
      if (this.kept.moment === this.moment) {
        this.kept.place = place;
      }
      this.tellSubject();
    }
  }

  private async set(index: number[], value: string): Promise<void> {
    const expression = index.length ? `${this.expression}[${index.join(", ")}]` : this.expression;
    let error: string | undefined;
    try {
      await this.session.customRequest("setExpression", { expression, value, frameId: this.frameId });
    } catch (caught) {
      error = (caught as Error).message;
    }
    this.tell({ kind: "set", error });
  }

  /** Asks for a file, and writes what the view has made. */
  private async save(format: SavedFormat, data: string): Promise<void> {
    const folder = this.session.workspaceFolder?.uri ?? vscode.workspace.workspaceFolders?.[0]?.uri;
    const name = `${this.expression.replace(/[^\w.-]+/g, "_").replace(/^_+|_+$/g, "") || "value"}.${format}`;
    const defaultUri = folder ? vscode.Uri.joinPath(folder, name) : vscode.Uri.file(path.resolve(name));
    const file = await vscode.window.showSaveDialog({ defaultUri, filters: FORMATS[format] });
    if (file) {
      try {
        await vscode.workspace.fs.writeFile(file, Buffer.from(data, format === "png" ? "base64" : "utf8"));
      } catch (error) {
        void vscode.window.showErrorMessage(`cannot write ${file.fsPath}: ${(error as Error).message}`);
      }
    }
  }
}

/** The end of a long name is what distinguishes it. */
function titleOf(expression: string): string {
  return expression.length > TITLE ? `…${expression.slice(1 - TITLE)}` : expression;
}

/** A question, whatever is there already. */
function keptKeyOf(question: Question): string {
  return keyOf({ ...question, known: undefined });
}
