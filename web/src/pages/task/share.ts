/** One image of a result, to share: drawn on a canvas, so that nothing leaves the browser. */
import type { TaskAnswer } from "../../api/schema";
import { duration, number } from "../../lib/format";
import { changeOf, type TrainingResult } from "../../lib/result";

const WIDTH = 1200;
const HEIGHT = 630;

export function saveCard(task: TaskAnswer, result: TrainingResult): void {
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH;
  canvas.height = HEIGHT;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  draw(pen, task, result);
  const link = document.createElement("a");
  link.href = canvas.toDataURL("image/png");
  link.download = `${task.name}.png`;
  link.click();
}

function draw(pen: CanvasRenderingContext2D, task: TaskAnswer, result: TrainingResult): void {
  const style = getComputedStyle(document.documentElement);
  const font = (size: number, weight = 400) => `${weight} ${size}px ${style.fontFamily || "sans-serif"}`;
  const write = (text: string, x: number, y: number, size: number, color: string, weight = 400) => {
    pen.font = font(size, weight);
    pen.fillStyle = color;
    pen.fillText(text, x, y, WIDTH - x - 60);
  };
  pen.fillStyle = "#101216";
  pen.fillRect(0, 0, WIDTH, HEIGHT);
  pen.fillStyle = "#86a8ff";
  pen.fillRect(0, 0, 12, HEIGHT);
  write(task.name, 60, 110, 52, "#e6e9ee", 650);
  write(`${modelOf(task)} · ${task.kind}`, 60, 165, 28, "#9aa3b2");
  const loss = changeOf(result.held_out?.loss_before, result.held_out?.loss_after);
  const shown = loss ?? changeOf(result.losses?.train_first, result.losses?.train_last);
  if (shown) {
    write(loss ? "Eval loss" : "Training loss", 60, 270, 28, "#9aa3b2");
    write(`${number(shown.before)} → ${number(shown.after)}`, 60, 365, 92, "#e6e9ee", 650);
    if (shown.percent !== null)
      write(
        `${shown.percent > 0 ? "+" : "−"}${Math.abs(shown.percent).toFixed(1)}%`,
        60,
        430,
        40,
        shown.after < shown.before ? "#5cc98b" : "#ff8a80",
        600,
      );
  }
  const facts = [duration(result.training_time_seconds), `${number(result.steps)} steps`];
  if (result.tokens?.seen) facts.push(`${number(result.tokens.seen)} tokens`);
  write(facts.join(" · "), 60, 520, 28, "#9aa3b2");
  write("Tunefleet", 60, 580, 28, "#86a8ff", 650);
}

function modelOf(task: TaskAnswer): string {
  const spec = (task.resolved ?? task.spec) as { model?: { source?: { identifier?: string } } };
  return spec.model?.source?.identifier?.replace(/^(\.\/|builtin:)/, "") ?? "";
}
