// One tensor view: a panel that shows the value of an expression.  Its page: webview/tensor.

import * as vscode from "vscode";
import { Page } from "../pages/page";
import { defaultFile, selectedFrameId } from "../session/commands";
import type { SessionEvent, SessionEvents } from "../views/sessionEvents";
import type { EarlyAnswer, FileFormat, FromTensor, SessionState, TensorRequest, ToTensor } from "./messages";
import { TensorRequests } from "./requests";

/** ms of a step: a longer move is shown as `running`. */
const STEP = 150;
const MOST_TITLE_LETTERS = 36;
const FILTERS: Record<FileFormat, Record<string, string[]>> = { csv: { "CSV file": ["csv"] }, png: { "PNG picture": ["png"] } };
const STATES: Record<string, SessionState> = { stopped: "stopped", invalidated: "stopped", terminated: "ended", ended: "ended" };

export class TensorPanel implements vscode.Disposable {
  static readonly type = "nncdbg.tensor";
  private readonly panel: vscode.WebviewPanel;
  private readonly page: Page<FromTensor, ToTensor>;
  private readonly requests: TensorRequests;
  private readonly listeners: vscode.Disposable[];
  private pinned = true;
  private state: SessionState = "stopped";
  /** The page has not yet received the moment: it waits for the early answer. */
  private unsent = false;
  private runningTimer: NodeJS.Timeout | undefined;

  constructor(
    extension: vscode.Uri,
    private readonly sessions: SessionEvents,
    session: vscode.DebugSession,
    readonly expression: string,
    frameId: number | undefined,
    column: vscode.ViewColumn,
    private readonly onClosed: (panel: TensorPanel) => void,
  ) {
    this.requests = new TensorRequests(sessions, session, frameId);
    this.panel = vscode.window.createWebviewPanel(TensorPanel.type, titleOf(expression), { viewColumn: column, preserveFocus: false });
    this.page = new Page<FromTensor, ToTensor>(this.panel.webview, extension, { name: "tensor", title: "Tensor" }, {
      ready: () => this.sendSubject(),
      request: ({ id, request, kept }) => void this.answer(id, request, kept),
      cancel: ({ id }) => this.requests.cancel(id),
      setElement: ({ index, value }) => void this.setElement(index, value),
      save: ({ format, data }) => void this.save(format, data),
      pin: ({ pinned }) => {
        this.pinned = pinned;
        this.sendSubject();
      },
      loadLibrary: () => void this.page.bundled("uplot.js").then((text) => this.page.send({ kind: "library", text })),
      useSelectedFrame: () => this.useSelectedFrame(),
    });
    this.listeners = [sessions.onEvent((event) => this.follow(event))];
    this.panel.onDidDispose(() => this.dispose());
  }

  get column(): vscode.ViewColumn | undefined {
    return this.panel.viewColumn;
  }

  /** Shows the panel, with the value in another frame. */
  show(session: vscode.DebugSession, frameId: number | undefined): void {
    Object.assign(this.requests, { session, frameId });
    this.panel.reveal();
    this.update("stopped");
  }

  shows(session: vscode.DebugSession, expression: string): boolean {
    return this.requests.session.id === session.id && this.expression === expression;
  }

  dispose(): void {
    this.onClosed(this);
    clearTimeout(this.runningTimer);
    this.requests.cancelAll();
    this.listeners.forEach((each) => void each.dispose());
    this.panel.dispose();
  }

  private follow({ session, event }: SessionEvent): void {
    if (event === "stopped" && this.pinned && this.state === "ended") {
      // The next session of the program: names are resolved in its innermost frame.
      Object.assign(this.requests, { session, frameId: undefined });
    }
    if (session.id !== this.requests.session.id) {
      return;
    }
    const state = STATES[event];
    if (event === "stackTrace") {
      this.updatePlace();
    } else if (event === "continued") {
      this.state = "running";
      this.runningTimer = setTimeout(() => this.sendSubject(), STEP);
    } else if (state) {
      this.update(state);
    }
  }

  /** Values may have changed. */
  private update(state: SessionState): void {
    clearTimeout(this.runningTimer);
    this.requests.startMoment();
    this.state = state;
    if (state === "stopped" && this.pinned) {
      void this.sendWithPicture();
    } else {
      this.sendSubject();
    }
  }

  /** Sends the moment together with the picture that the page shows. */
  private async sendWithPicture(): Promise<void> {
    const { moment } = this.requests.moment;
    this.unsent = true;
    const early = await this.requests.requestEarly();
    await this.sessions.valuesShown(this.requests.session);
    if (moment === this.requests.moment.moment && this.unsent) {
      this.sendSubject(early);
    }
  }

  private sendSubject(early: EarlyAnswer[] = []): void {
    const { expression, pinned, state, requests } = this;
    const kept = !pinned || state === "ended" ? requests.kept : undefined;
    this.unsent = false;
    this.page.send({ kind: "subject", expression, pinned, session: state, ...requests.moment, kept, early });
  }

  /** VS Code has received the current statement. */
  private updatePlace(): void {
    const place = this.sessions.placeOf(this.requests.session);
    if (this.state === "ended" || place === this.requests.moment.place) {
      return;
    }
    this.requests.setPlace(place);
    if (this.state === "stopped" && !this.unsent) {
      this.sendSubject();
    }
  }

  private async answer(id: number, request: TensorRequest, kept: boolean): Promise<void> {
    try {
      this.page.send({ kind: "answer", id, body: await this.requests.answer(id, request, kept) });
    } catch (error) {
      this.page.send({ kind: "failed", id, message: (error as Error).message });
    }
  }

  private useSelectedFrame(): void {
    const active = vscode.debug.activeDebugSession;
    const session = active?.type === "nncdbg" ? active : this.requests.session;
    Object.assign(this.requests, { session, frameId: selectedFrameId() });
    this.update(this.state);
  }

  private async setElement(index: number[], value: string): Promise<void> {
    const expression = index.length ? `${this.expression}[${index.join(", ")}]` : this.expression;
    const { session, frameId } = this.requests;
    const error = await session.customRequest("setExpression", { expression, value, frameId }).then(
      () => undefined,
      ({ message }: Error) => message,
    );
    this.page.send({ kind: "elementSet", error });
  }

  private async save(format: FileFormat, data: string): Promise<void> {
    const defaultUri = defaultFile(this.expression, format, this.requests.session);
    const file = await vscode.window.showSaveDialog({ defaultUri, filters: FILTERS[format] });
    if (file) {
      try {
        await vscode.workspace.fs.writeFile(file, Buffer.from(data, format === "png" ? "base64" : "utf8"));
      } catch (error) {
        void vscode.window.showErrorMessage(`cannot write ${file.fsPath}: ${(error as Error).message}`);
      }
    }
  }
}

/** The end of a long name, which distinguishes it. */
function titleOf(expression: string): string {
  return expression.length > MOST_TITLE_LETTERS ? `…${expression.slice(1 - MOST_TITLE_LETTERS)}` : expression;
}
