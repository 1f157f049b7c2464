// A view with a page that shows the answer to a request, and opens lines.

import * as vscode from "vscode";
import { Page, type PageOptions } from "../pages/page";
import { withErrorMessage } from "../session/commands";
import { Follower, type FollowingView } from "./following";
import type { FromView, ToView } from "./messages";
import type { SessionEvents } from "./sessionEvents";
import { openLine } from "./sources";

export class PageView implements FollowingView, vscode.WebviewViewProvider, vscode.Disposable {
  readonly follower: Follower;
  private readonly registration: vscode.Disposable;
  private view: vscode.WebviewView | undefined;
  private page: Page<FromView, ToView<unknown>> | undefined;
  private session: vscode.DebugSession | undefined;
  private shown: ToView<unknown> = { kind: "status", text: "" };
  private choice: object | undefined;

  constructor(
    private readonly extension: vscode.Uri,
    sessions: SessionEvents,
    readonly request: string,
    private readonly options: PageOptions,
  ) {
    this.follower = new Follower(this, sessions);
    this.registration = vscode.window.registerWebviewViewProvider(`nncdbg.${options.name}`, this);
  }

  resolveWebviewView(view: vscode.WebviewView): void {
    this.view = view;
    view.onDidChangeVisibility(() => this.follower.update());
    view.onDidDispose(() => this.view === view && (this.view = this.page = undefined));
    this.page = new Page<FromView, ToView<unknown>>(view.webview, this.extension, this.options, {
      ready: ({ choice }) => this.ready(choice),
      choose: ({ choice }) => {
        this.choice = choice;
        this.follower.restart();
      },
      openLine: ({ target }) => void openLine(target, this.session),
      goTo: ({ statements }) => void withErrorMessage(() => this.goTo(statements)),
      viewTensor: ({ expression }) => void vscode.commands.executeCommand("nncdbg.viewTensor", { expression }),
    });
  }

  /** The page is new: VS Code discards the page of a hidden view. */
  private ready(kept: object): void {
    if (this.choice) {
      this.page?.send({ kind: "choice", choice: this.choice });
    } else if (Object.keys(kept).length) {
      this.choice = kept;
      this.follower.restart();
    }
    this.page?.send(this.shown);
    void this.follower.update();
  }

  private async goTo(statements: number): Promise<void> {
    await this.session?.customRequest("nncdbg/moment", { statements });
  }

  get visible(): boolean {
    return this.view?.visible ?? false;
  }

  arguments(): object {
    return { ...this.choice };
  }

  show(answer: unknown, session: vscode.DebugSession): void {
    this.session = session;
    this.send({ kind: "answer", answer });
  }

  showStatus(text: string): void {
    this.send({ kind: "status", text });
  }

  protected choose(choice: object): void {
    this.choice = choice;
    this.page?.send({ kind: "choice", choice });
    this.follower.restart();
  }

  private send(message: ToView<unknown>): void {
    this.shown = message;
    this.page?.send(message);
  }

  dispose(): void {
    this.registration.dispose();
  }
}
