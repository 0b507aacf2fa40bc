import type { Snippet } from 'svelte';

/** A column of a table. */
export interface Column<T> {
  id: string;
  label: string;
  /** Figures stand on the right. */
  numeric?: boolean;
  /** What the column is sorted by; without it the column is not sortable. */
  by?: (row: T) => string | number | null | undefined;
  /** The API can order by it: in a table whose rows come in the order of the address. */
  sorts?: boolean;
  /** The text of a cell, unless cell draws it. */
  text?: (row: T) => string;
  cell?: Snippet<[T]>;
  /** Left out where there is little room. */
  wide?: boolean;
  title?: string;
}
