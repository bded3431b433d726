/** Names of metrics for people, and the chart and group that each belongs to. Pure. */

export const GROUPS = [
  ["loss", "Loss and evaluation"],
  ["reward", "Rewards and preferences"],
  ["completion", "Completions"],
  ["optimization", "Optimization"],
  ["speed", "Speed"],
  ["hardware", "Hardware"],
  ["other", "Other metrics"],
] as const;
export type Group = (typeof GROUPS)[number][0];

export interface Metric {
  /** Chart that it is drawn in: metrics with the same one share it. */
  chart: string;
  title: string;
  /** Its line, if the chart has several metrics. */
  part?: string;
  group: Group;
  unit?: string;
  /** Measured on eval rows. */
  eval: boolean;
  /** Place of its chart among others. */
  rank: number;
}

type Known = readonly [title: string, group: Group, unit?: string];

const KNOWN: Readonly<Record<string, Known>> = {
  loss: ["Loss", "loss"],
  train_loss: ["Average training loss", "loss"],
  exact_match: ["Exact match", "loss"],
  mean_token_accuracy: ["Token accuracy", "loss"],
  policy_loss: ["Policy loss", "loss"],
  value_loss: ["Value loss", "loss"],
  nll_loss: ["NLL loss", "loss"],
  aux_loss: ["Router auxiliary loss", "loss"],
  reward: ["Reward", "reward"],
  accuracy: ["Preference accuracy", "reward"],
  margin: ["Reward margin", "reward"],
  "rewards/accuracies": ["Preference accuracy", "reward"],
  "rewards/margins": ["Reward margin", "reward"],
  reward_std: ["Reward standard deviation", "reward"],
  frac_reward_zero_std: ["Groups with equal rewards", "reward", "fraction"],
  log_odds_chosen: ["Log odds", "reward"],
  log_odds_ratio: ["Log odds ratio", "reward"],
  objective: ["Objective", "reward"],
  kl: ["KL divergence", "reward", "nats"],
  "completions/clipped_ratio": ["Truncated completions", "completion", "fraction"],
  "tools/call_frequency": ["Tool calls per completion", "completion"],
  "tools/failure_frequency": ["Failed tool calls", "completion", "fraction"],
  learning_rate: ["Learning rate", "optimization"],
  grad_norm: ["Gradient norm", "optimization"],
  entropy: ["Entropy", "optimization", "nats"],
  entropy_coef: ["Entropy coefficient", "optimization"],
  train_tokens_per_second: ["Tokens per second", "speed", "tokens/s"],
  step_time: ["Step time of the trainer", "speed", "s"],
};

const RANKS = new Map(Object.keys(KNOWN).map((name, at) => [name, at]));

/** Charts of several metrics: a pattern of names whose group is the line. */
const SHARED: readonly { name: RegExp; title: string; group: Group; unit?: string }[] = [
  { name: /^rewards\/(chosen|rejected)$/, title: "Implicit rewards", group: "reward" },
  { name: /^(mean|min|max)_reward$/, title: "Reward", group: "reward" },
  { name: /^logps\/(chosen|rejected)$/, title: "Log-probabilities", group: "reward", unit: "nats" },
  { name: /^logits\/(chosen|rejected)$/, title: "Mean logits", group: "reward" },
  { name: /^rewards\/(.+)\/mean$/, title: "Rewards by function", group: "reward" },
  { name: /^rewards\/(.+)\/std$/, title: "Reward standard deviation by function", group: "reward" },
  { name: /^completions\/(mean|min|max)_length$/, title: "Completion length", group: "completion", unit: "tokens" },
  {
    name: /^completions\/(mean|min|max)_terminated_length$/,
    title: "Length of ended completions",
    group: "completion",
    unit: "tokens",
  },
  { name: /^clip_ratio\/(.+)$/, title: "Clip ratio", group: "optimization", unit: "fraction" },
  {
    name: /^sampling\/importance_sampling_ratio\/(.+)$/,
    title: "Importance sampling ratio",
    group: "optimization",
  },
  {
    name: /^sampling\/sampling_logp_difference\/(.+)$/,
    title: "Difference of log-probabilities in sampling",
    group: "optimization",
    unit: "nats",
  },
];

/** Evaluations before and after training log other names than those during training. */
const SAME_EVAL: Readonly<Record<string, readonly string[]>> = {
  held_out_accuracy: ["rewards/accuracies", "accuracy"],
  held_out_margin: ["rewards/margins", "margin"],
  held_out_reward: ["reward", "mean_reward"],
  held_out_reward_good: ["rewards/chosen"],
  held_out_reward_bad: ["rewards/rejected"],
  held_out_answer_tokens: ["completions/mean_length"],
  held_out_cut_answers: ["completions/clipped_ratio"],
};
const HELD_OUT = "held_out_";
const EVAL = "eval_";

const OTHER_NAMES = new Map<string, string>(
  Object.entries(SAME_EVAL).flatMap(([held, bases]) => bases.map((base) => [EVAL + base, held] as const)),
);

/** Counters and the duration of evaluations: charted on request only. */
const MINOR =
  /(^|_)(runtime|samples_per_second|steps_per_second|preparation_time|num_tokens|num_input_tokens_seen|total_flos)$|^num_|^eval_(learning_rate|entropy)$/;

export function isMinor(name: string): boolean {
  return MINOR.test(name);
}

/** The name under which the same measurement is logged before and after training. */
export function otherName(name: string): string | undefined {
  if (!name.startsWith(EVAL)) return undefined;
  return OTHER_NAMES.get(name) ?? HELD_OUT + name.slice(EVAL.length);
}

/** The metrics of a run, where an evaluation is one metric, whenever it was made. */
export function metricsOf(names: readonly string[]): string[] {
  const known = new Set(names);
  const one = (name: string) => {
    if (!name.startsWith(HELD_OUT)) return name;
    const bases = SAME_EVAL[name] ?? [name.slice(HELD_OUT.length)];
    return EVAL + (bases.find((base) => known.has(base) || known.has(EVAL + base)) ?? bases[0]);
  };
  return [...new Set(names.map(one))];
}

export function metric(name: string): Metric {
  const known = KNOWN[name];
  if (known) return { chart: name, ...described(known), eval: false, rank: RANKS.get(name) ?? 0 };
  if (name.startsWith(EVAL)) return { ...metric(name.slice(EVAL.length)), eval: true };
  if (name.startsWith(HELD_OUT)) return { ...metric(name.slice(HELD_OUT.length)), eval: true };
  for (const [at, { name: pattern, title, group, unit }] of SHARED.entries()) {
    const part = pattern.exec(name)?.[1];
    const rank = RANKS.size + at;
    if (part) return { chart: title, title, part: sentence(part), group, unit, eval: false, rank };
  }
  return { chart: name, title: sentence(name), group: "other", eval: false, rank: RANKS.size + SHARED.length };
}

/** A metric alone, such as in a table: "Training loss", "Eval token accuracy", "Learning rate". */
export function metricName(name: string): string {
  const { title, part, eval: evaluated } = metric(name);
  const whole = part ? `${title}: ${lower(part)}` : title;
  if (evaluated) return `Eval ${lower(whole)}`;
  return name === "loss" ? "Training loss" : whole;
}

/** `title (unit)`. */
export function withUnit(title: string, unit: string | undefined): string {
  return unit ? `${title} (${unit})` : title;
}

/** The label of a metric within its chart. */
export function lineName({ title, part, eval: evaluated, group }: Metric): string {
  const whole = part ?? title;
  if (evaluated) return `Eval ${lower(whole)}`;
  return part || group !== "loss" ? whole : `Training ${lower(whole)}`;
}

function described([title, group, unit]: Known): Pick<Metric, "title" | "group" | "unit"> {
  return { title, group, unit };
}

/** `policy/approx_kl` → `Policy approx kl`. */
function sentence(name: string): string {
  const text = name.replaceAll(/[_/]+/g, " ").trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function lower(text: string): string {
  return /^[A-Z]{2}/.test(text) ? text : text.charAt(0).toLowerCase() + text.slice(1);
}
