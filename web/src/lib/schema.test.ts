import { expect, test } from "vitest";
import { fieldsAt, placeAt, type SchemaNode, valuesAt } from "./schema";

const schema: SchemaNode = {
  $defs: {
    Lora: { properties: { r: { type: "integer", description: "Rank." } } },
    Sft: { properties: { taskType: { const: "sft" }, packing: { type: "boolean" } } },
    LoraSft: {
      properties: {
        taskType: { const: "lora_sft" },
        lora: { $ref: "#/$defs/Lora" },
        dtype: { enum: ["fp16", "bf16"] },
      },
    },
  },
  properties: {
    kind: { type: "string" },
    spec: {
      oneOf: [{ $ref: "#/$defs/Sft" }, { $ref: "#/$defs/LoraSft" }],
      discriminator: {
        propertyName: "taskType",
        mapping: { sft: "#/$defs/Sft", lora_sft: "#/$defs/LoraSft" },
      },
    },
  },
};
const text = "kind: X\nspec:\n  taskType: lora_sft\n  lora:\n    ";

test("the position is read from the indentation of incomplete text", () => {
  expect(placeAt(text, text.length)).toEqual({ path: ["spec", "lora"], key: null, typed: "", taskType: "lora_sft" });
  const value = "spec:\n  taskType: lora_sft\n  dtype: b";
  expect(placeAt(value, value.length)).toMatchObject({ path: ["spec"], key: "dtype", typed: "b" });
});

test("fields match the task type", () => {
  expect(fieldsAt(schema, { path: ["spec"], taskType: "lora_sft" }).map((field) => field.name)).toEqual([
    "taskType",
    "lora",
    "dtype",
  ]);
  expect(fieldsAt(schema, { path: ["spec", "lora"], taskType: "lora_sft" })[0]).toMatchObject({
    name: "r",
    about: "Rank.",
  });
});

test("enumerable values are offered", () => {
  expect(valuesAt(schema, { path: ["spec"], key: "dtype", typed: "", taskType: "lora_sft" })).toEqual(["fp16", "bf16"]);
  expect(valuesAt(schema, { path: ["spec"], key: "packing", typed: "", taskType: "sft" })).toEqual(["true", "false"]);
});
