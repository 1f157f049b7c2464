// dagre, a global of the page: the build replaces imports of dagre by this file.

declare const dagre: Pick<typeof import("@dagrejs/dagre"), "graphlib" | "layout">;

export const { graphlib, layout } = dagre;
