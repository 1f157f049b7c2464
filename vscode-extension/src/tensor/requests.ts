// The requests of one tensor view, and its answers that are kept for a page that VS Code discards while it is hidden.

import type * as vscode from "vscode";
import type { SessionEvents } from "../views/sessionEvents";
import { type EarlyAnswer, type Moment, type TensorRequest, keyOf } from "./messages";

const MOST_KEPT = 12;

export class TensorRequests {
  private readonly pending = new Map<number | string, () => void>();
  /** The page's last request of a picture, with the version of its answer. */
  private picture: TensorRequest | undefined;
  /** The same request, sent at this moment before the page sends it. */
  private early: { key: string; answer: Promise<unknown> } | undefined;
  private readonly answers = new Map<string, unknown>();
  private keptMoment: Moment = { moment: -1, place: "" };
  private current: Moment;

  constructor(
    private readonly sessions: SessionEvents,
    public session: vscode.DebugSession,
    public frameId: number | undefined,
  ) {
    this.current = { moment: 0, place: sessions.placeOf(session) };
  }

  get moment(): Moment {
    return this.current;
  }

  /** The moment of the kept answers; undefined if there are none. */
  get kept(): Moment | undefined {
    return this.answers.size ? this.keptMoment : undefined;
  }

  /** Values may have changed: cancels all requests. */
  startMoment(): void {
    this.cancelAll();
    this.current = { ...this.current, moment: this.current.moment + 1 };
  }

  /** The place of the moment is known only later. */
  setPlace(place: string): void {
    this.current = { ...this.current, place };
    if (this.keptMoment.moment === this.current.moment) {
      this.keptMoment = this.current;
    }
  }

  cancel(id: number): void {
    this.pending.get(id)?.();
  }

  cancelAll(): void {
    this.pending.forEach((cancel) => cancel());
    this.pending.clear();
    this.early = undefined;
  }

  /** Requests the picture that the page shows; the page may receive it with the moment.  Errors are left to the page's own request. */
  async requestEarly(): Promise<EarlyAnswer[]> {
    const { picture } = this;
    this.picture = undefined;
    if (!picture) {
      return [];
    }
    const key = keyOf(picture);
    const answer = this.send(key, picture);
    this.early = { key, answer };
    return answer.then((body) => [{ key, body }], () => []);
  }

  /** The answer to a request of the page.  `kept`: if possible the one of an earlier moment. */
  answer(id: number, request: TensorRequest, kept: boolean): Promise<unknown> {
    const key = versionlessKeyOf(request);
    if (kept && this.answers.has(key)) {
      return Promise.resolve(this.answers.get(key));
    }
    return this.early?.key === keyOf(request) ? this.early.answer : this.send(id, request);
  }

  private async send(id: number | string, request: TensorRequest): Promise<unknown> {
    const { current, frameId } = this;
    const { body, cancel } = this.sessions.request(this.session, request.command, { ...request.arguments, known: request.known, frameId });
    this.pending.set(id, cancel);
    try {
      const answer = await body;
      this.keep(current, request, answer as { version?: number; unchanged?: boolean });
      return answer;
    } finally {
      this.pending.delete(id);
    }
  }

  private keep(moment: Moment, request: TensorRequest, answer: { version?: number; unchanged?: boolean }): void {
    const key = versionlessKeyOf(request);
    if (moment.moment === this.current.moment && answer.version !== undefined) {
      this.picture = { ...request, known: answer.version };
    }
    // The whole of an unchanged answer came at an earlier moment.
    const whole = answer.unchanged ? (this.answers.get(key) ?? answer) : answer;
    if (this.keptMoment.moment !== moment.moment) {
      this.keptMoment = moment.moment === this.current.moment ? this.current : moment;
      this.answers.clear();
    }
    this.answers.delete(key);
    this.answers.set(key, whole);
    if (this.answers.size > MOST_KEPT) {
      this.answers.delete(this.answers.keys().next().value as string);
    }
  }
}

function versionlessKeyOf(request: TensorRequest): string {
  return keyOf({ ...request, known: undefined });
}
