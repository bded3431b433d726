/** Labels of dataset formats. */
import type { DatasetLook } from "../api/schema";

export const KINDS: Record<NonNullable<DatasetLook["kind"]>, string> = {
  alpaca: "Alpaca",
  sharegpt: "ShareGPT",
  messages: "chats",
  chatml: "ChatML text",
  prompt_response: "prompts and responses",
  preference: "preferences",
  hh: "preferences",
  judged: "answers with a label",
  text: "plain text",
};
