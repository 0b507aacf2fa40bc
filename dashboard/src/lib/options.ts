// What a queue can be told. The broker keeps the same list in docs/http.md and checks every value.

export interface Option {
  name: string;
  kind: 'int' | 'bool';
  unit?: string;
  /** What a queue has that was never configured. */
  fallback: number | boolean;
  doc: string;
  /** Stored and shown, without an effect. */
  inert?: boolean;
}

export const options: readonly Option[] = [
  { name: 'leaseTime', kind: 'int', unit: 's', fallback: 60, doc: 'How long a pop holds its messages unless it says otherwise.' },
  { name: 'retryLimit', kind: 'int', fallback: 3, doc: 'Explicit failures of a message before it becomes a dead letter.' },
  { name: 'maxDeliveries', kind: 'int', fallback: 0, doc: 'Deliveries of any kind before a message becomes a dead letter; 0 is no limit.' },
  { name: 'redeliveryDelayMs', kind: 'int', unit: 'ms', fallback: 0, doc: 'How long a failed message waits before it is delivered again.' },
  { name: 'deadLetterQueue', kind: 'bool', fallback: true, doc: 'Keep what failed too often. Off only when the next one is off, too.' },
  { name: 'dlqAfterMaxRetries', kind: 'bool', fallback: true, doc: 'The same; either of the two is enough.' },
  { name: 'dlqRetentionSeconds', kind: 'int', unit: 's', fallback: 0, doc: 'How long dead letters are kept; 0 is for ever.' },
  { name: 'maxSize', kind: 'int', fallback: 0, doc: 'Most messages that wait; beyond it pushes are refused. 0 is no limit.' },
  { name: 'delayedProcessing', kind: 'int', unit: 's', fallback: 0, doc: 'Only messages at least this old are delivered.' },
  { name: 'windowBuffer', kind: 'int', unit: 's', fallback: 0, doc: 'A partition that received anything within this time delivers nothing.' },
  { name: 'minPopWaitTime', kind: 'int', unit: 'ms', fallback: 0, doc: 'How long a waiting pop holds an under-full batch, at most 60,000.' },
  { name: 'dedupWindowSeconds', kind: 'int', unit: 's', fallback: 3600, doc: 'How long a transaction id is remembered; 0 turns de-duplication off.' },
  { name: 'retentionEnabled', kind: 'bool', fallback: false, doc: 'Lets the next two delete.' },
  { name: 'retentionSeconds', kind: 'int', unit: 's', fallback: 0, doc: 'Deletes older messages, consumed or not; 0 is never.' },
  { name: 'completedRetentionSeconds', kind: 'int', unit: 's', fallback: 0, doc: 'Deletes older messages that every group has passed; 0 is never.' },
  { name: 'maxWaitTimeSeconds', kind: 'int', unit: 's', fallback: 0, doc: 'Deletes older messages for everyone, unread ones too; 0 is never.' },
  { name: 'encryptionEnabled', kind: 'bool', fallback: false, doc: 'Payloads are stored encrypted; the brokers need a key.' },
  { name: 'priority', kind: 'int', fallback: 0, doc: 'Stored and shown only.', inert: true },
  { name: 'retryDelay', kind: 'int', unit: 'ms', fallback: 1000, doc: 'Stored and shown only; see redeliveryDelayMs.', inert: true },
  { name: 'ttl', kind: 'int', unit: 's', fallback: 3600, doc: 'Stored and shown only; see the retentions.', inert: true },
];

export type Values = Record<string, number | boolean>;

/** The options whose values differ, with both values. */
export function differences(before: Values, after: Values): { name: string; before: number | boolean | undefined; after: number | boolean | undefined }[] {
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => before[name] !== after[name]).map((name) => ({ name, before: before[name], after: after[name] }));
}

/** The flag of queenctl for an option. */
export function flag(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}
