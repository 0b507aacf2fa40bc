// The answers of the API that the console reads, as far as it reads them. docs/http.md and /openapi.json say the rest.
import type { Raw } from './json';

export interface QueueRow {
  id: string;
  name: string;
  namespace: string | null;
  task: string | null;
  createdAt: string;
  partitions: number;
  retainedBytes: number;
  leaseTime: number;
  retryLimit: number;
  maxSize: number;
  encryptionEnabled: boolean;
  segments: { segments: number; messages: number };
  messages: { total: number; pending: number; processing: number };
}

/** A queue in a list, with the figures of the last statistics: none before the first. */
export interface ListedQueue extends Omit<QueueRow, 'partitions' | 'retainedBytes' | 'segments' | 'messages'> {
  partitions: number | null;
  retainedBytes: number | null;
  ingestedPerSecond: number | null;
  messages: { total: number | null; pending: number | null; processing: number | null; deadLetter: number | null };
}

export interface QueuesAnswer {
  queues: ListedQueue[];
  total: number;
  all: number;
  nextCursor: string | null;
}

export interface Counters {
  total: number;
  pending: number;
  processing: number;
  completed: number;
  deadLetter: number;
}

export interface OverviewAnswer {
  queues: number;
  partitions: number;
  messages: Counters & { failed: number };
  lag: { time: { max: number } };
  throughput: { ingestedPerSecond: number; processedPerSecond: number };
  statsAge: number;
}

export interface WorkerPoint {
  timestamp: string;
  pushMessages: number;
  popMessages: number;
  ackMessages: number;
  pushPerSecond: number;
  popPerSecond: number;
  ackPerSecond: number;
  avgLagMs: number | null;
  maxLagMs: number | null;
  dbErrors: number;
  ackSuccess: number;
  ackFailed: number;
  dlqCount: number;
  dbConnections: number | null;
  maxJobQueueSize: number | null;
}

export interface WorkerAnswer {
  timeRange: { from: string; to: string };
  bucketMinutes: number;
  timeSeries: WorkerPoint[];
}

export interface OpsPoint {
  bucket: string;
  queueName: string;
  pushMessages: number;
  popMessages: number;
  ackSuccess: number;
  ackFailed: number;
  pushPerSecond: number;
  popPerSecond: number;
  ackPerSecond: number;
  avgLagMs: number | null;
  maxLagMs: number | null;
  parkedCount: number;
}

export interface OpsAnswer {
  timeRange: { from: string; to: string };
  bucketMinutes: number;
  series: OpsPoint[];
}

export interface GroupRow {
  name: string;
  queueName: string;
  partitionCursors: number;
  partitionsWithLag: number;
  totalLag: number;
  maxTimeLag: number;
  state: string;
  subscriptionMode: string | null;
  subscriptionTimestamp: string | null;
}

export interface GroupsAnswer {
  groups: GroupRow[];
  total: number;
  nextCursor: string | null;
}

/** What a move of a group would do. */
export interface SeekPreview {
  partitionsUpdated: number;
  partitionsMoved: number;
  again: number;
  skipped: number;
  pending: number;
  leases: number;
}

/** What a group has before it in one partition, and who holds it. */
export interface GroupPartition {
  queue: string;
  partition: string;
  partitionId: string;
  offsetLag: number;
  timeLagSeconds: number;
  totalConsumed: number;
  lastConsumedAt: string | null;
  leaseActive: boolean;
  leaseId: string | null;
  leaseExpiresAt: string | null;
  attemptCount: number;
  batchRetryCount: number;
  abandoned: boolean;
  redeliveryAt: string | null;
}

export interface GroupPartitionsAnswer {
  partitions: GroupPartition[];
  totals: { partitions: number; behind: number; lag: number; leased: number; abandoned: number; holders: number };
  total: number;
  nextCursor: string | null;
}

export interface Lease {
  queue: string;
  partition: string;
  partitionId: string;
  consumerGroup: string;
  leaseId: string;
  acquiredAt: string | null;
  leaseExpiresAt: string;
  secondsRemaining: number;
  heldSeconds: number | null;
  messageCount: number;
  batchRetryCount: number;
  attemptCount: number;
}

export interface LeasesAnswer {
  leases: Lease[];
  total: number;
  abandoned?: number;
}

/** A lease in a list of partitions; without an id a redelivery waits for its time. */
export interface PartitionLease {
  consumerGroup: string;
  leaseId: string | null;
  leaseExpiresAt: string;
  live: boolean;
  heldSeconds: number | null;
  messageCount: number | null;
  attemptCount: number;
  batchRetryCount: number;
}

export interface PartitionRow {
  id: string;
  name: string;
  createdAt: string;
  lastWriteAt: string | null;
  messages: Counters;
  oldestMessage: string | null;
  newestMessage: string | null;
  leases: PartitionLease[];
}

export interface MessageRow {
  id: string | null;
  transactionId: string | null;
  traceId: string | null;
  producerSub: string | null;
  isEncrypted: boolean;
  txnHash: string;
  partitionId: string;
  queue: string;
  partition: string;
  status: string;
  payloadAvailable: boolean;
  offset: number;
  createdAt: string;
  leaseExpiresAt: string | null;
  payload: Raw;
}

export interface GroupState {
  name: string;
  consumed: boolean;
  leaseExpiresAt: string | null;
}

/** A page of messages; with a condition on payloads also at how many a step of the search looked. */
export interface MessagesAnswer {
  messages: MessageRow[];
  nextCursor: string | null;
  searched?: { messages: number; unreadable: number; until: string | null };
}

/** What the cursor of a group knows of one message; null is not kept. */
export interface Delivery {
  group: string;
  state: 'passed' | 'held' | 'abandoned' | 'delayed' | 'waiting';
  attempts: number | null;
  attemptsExact: boolean;
  failures: number | null;
  leaseId: string | null;
  acquiredAt: string | null;
  expiresAt: string | null;
  redeliveryAt: string | null;
}

export interface MessageDetail extends MessageRow {
  errorMessage: string | null;
  retryCount: number;
  queueConfig: { leaseTime: number; retryLimit: number };
  deliveries: Delivery[];
}

export interface DeadLetter {
  id: string;
  transactionId: string | null;
  partitionId: string;
  queue: string | null;
  partition: string | null;
  consumerGroup: string;
  errorMessage: string | null;
  retryCount: number;
  producerSub: string | null;
  messageId: string;
  offset: number;
  traceId: string | null;
  failedAt: string;
  payload: Raw;
}

export interface ErrorShape {
  shape: string;
  sample: string;
  count: number;
  queues: string[];
  firstFailedAt: string;
  lastFailedAt: string;
}

export interface TaskRow {
  id: string;
  kind: 'redrive' | 'purge';
  state: string;
  filter: Record<string, string>;
  destination: { queue: string | null; partition: string | null } | null;
  rate: number;
  total: number;
  moved: number;
  deleted: number;
  duplicate: number;
  skipped: number;
  remaining: number;
  lastError: string | null;
  createdBy: string | null;
  createdAt: string;
  updatedAt: string | null;
  finishedAt: string | null;
}

export interface PostgresAnswer {
  timestamp: string;
  database: string;
  databaseSize?: number;
  databaseCache: { cacheHitRatio: number | null };
  deadTuples: { table: string; deadTuples: number; liveTuples: number; deadPercentage: number | null; lastAutovacuum: string | null }[];
  activeQueries: { pid: number; duration: number | null; state: string | null; query: string | null; waitEventType: string | null; waitEvent: string | null }[];
  oldestSnapshot?: { pid: number; applicationName: string | null; state: string | null; ageSeconds: number | null; xidAge: number; query: string | null } | null;
  lockWaits?: { pid: number; blockedBy: number[]; waitEvent: string | null; waitSeconds: number | null; query: string | null }[];
  vacuumRunning?: { pid: number; table: string; phase: string; scannedPercentage: number }[];
  tableSizes: { table: string; totalSizeBytes: number; tableSizeBytes: number; indexSizeBytes: number }[];
}

export interface BrokerRow {
  id: string;
  instance: string;
  version: string;
  address: string;
  startedAt: string;
  lastSeen: string;
  alive: boolean;
  self: boolean;
}

export interface ReadyAnswer {
  ready: boolean;
  checks: Record<string, string>;
}

export interface CapacityAnswer {
  queues: { queue: string; maxSize: number; queueDepth: number; remainingCapacity: number; full: boolean }[];
}

export interface MaintenanceAnswer {
  maintenanceMode: boolean;
  popMaintenanceMode?: boolean;
  bufferedMessages: number;
  bufferHealthy: boolean;
  bufferStats?: { pendingCount: number; failedCount: number; failedFiles?: { count: number } };
}

export interface RetentionAnswer {
  bucketMinutes: number;
  series: { bucket: string; retentionMsgs: number; completedRetentionMsgs: number; evictionMsgs: number; totalMsgs: number; eventCount: number }[];
  totals: { retentionMsgs: number; completedRetentionMsgs: number; evictionMsgs: number; totalMsgs: number; eventCount: number };
}

export const queueMode = '__QUEUE_MODE__';

/** What a group is called for people. */
export function groupTitle(name: string): string {
  return name === queueMode ? '(no group)' : name;
}
