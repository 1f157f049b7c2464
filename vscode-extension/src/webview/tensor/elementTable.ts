// The table of a tensor's elements.

import { gridOf } from "../page/numbers";
import type { Content } from "./content";
import { partShown } from "./controls";
import type { Loader } from "./loader";
import { indexOf } from "./navigation";
import type { Table } from "./table";

interface TableListener {
  pointed: (index: number[]) => void;
  /** `value` is an expression. */
  edited: (index: number[], value: string) => void;
}

/** The table of the shown rows and columns.  Only elements of the tensor itself can be edited. */
export function elementTable(loader: Loader, { info, options }: Content, { pointed, edited }: TableListener): Table {
  const part = partShown(options);
  return {
    rows: info.shape[options.rows] ?? 1,
    columns: info.shape[options.columns] ?? 1,
    page: async ({ rows, columns }) => {
      const { cells } = await loader.page(options, part, info.dtype, rows, columns);
      return { cells, grid: gridOf(cells.shape, options.rows, options.columns) };
    },
    pointed: (row, column) => {
      options.cursor = [row, column];
      pointed(indexOf(options, row, column));
    },
    edit: part === "here" ? (row, column, text) => edited(indexOf(options, row, column), info.dtype === "str" ? JSON.stringify(text) : text) : undefined,
  };
}
