// dagre, which its own file has made a global: the bundles of the pages have this in its place.

declare const dagre: Pick<typeof import("@dagrejs/dagre"), "graphlib" | "layout">;

export const { graphlib, layout } = dagre;
