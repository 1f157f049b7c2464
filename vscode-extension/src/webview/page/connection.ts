// What the page of a view hears and says.

import type { FromPage, ToPage } from "../../pages/messages";

interface Code {
  postMessage(message: FromPage): void;
  getState(): unknown;
  setState(state: unknown): void;
}

declare function acquireVsCodeApi(): Code;

const code = acquireVsCodeApi();

export const tell = (message: FromPage): void => code.postMessage(message);

/** What a page keeps while it is hidden. */
export function kept<State>(otherwise: State): State {
  return { ...otherwise, ...(code.getState() as Partial<State> | undefined) };
}

export const keep = (state: object): void => code.setState(state);

export function follow(show: (answer: never) => void, say: (words: string) => void, asked?: (asks: never) => void): void {
  window.addEventListener("message", ({ data }: MessageEvent<ToPage>) => {
    if (data.kind === "show") {
      show(data.answer as never);
    } else if (data.kind === "say") {
      say(data.words);
    } else {
      asked?.(data.asks as never);
    }
  });
  tell({ kind: "ready" });
}
