/** What the steps of the fine-tune wizard hand on. */

export interface ModelChoice {
  identifier: string;
  /** Digest of an uploaded folder; it is submitted as an input. */
  digest?: string;
  weights?: number;
}
