package api

// The shapes of requests and answers, for /openapi.json and for the tests that hold real answers against them.
const (
	shapePush   shape = `{"items":[{"queue":"string","partition?":"string|null","payload":"any","transactionId?":"string|null","traceId?":"string|null","traceparent?":"string|null"}]}`
	shapePushed shape = `[{"index":"int","message_id":"uuid","transaction_id":"string","queueName":"string","status":"string","partition_id?":"uuid","trace_id?":"uuid",
		"error?":"string","code?":"string","queueDepth?":"int","remainingCapacity?":"int"}]`
	shapePopped shape = `{"success":"bool","queue":"string","partition":"string","partitionId":"string","leaseId":"string","consumerGroup":"string","partitionsClaimed":"int",
		"messages":[{"id":"uuid","transactionId":"string","traceId":"uuid|null","traceparent?":"string","data":"any","producerSub":"string|null","createdAt":"time","partitionId":"uuid","partition":"string",
		"leaseId":"string","consumerGroup":"string","queue?":"string"}]}`
	shapeAck         shape = `{"transactionId":"string","partitionId":"string","status?":"string|null","error?":"string|null","consumerGroup?":"string|null","leaseId?":"string|null","delayMs?":"int|null"}`
	shapeAckBatch    shape = `{"consumerGroup?":"string|null","acknowledgments|null?":[{"transactionId":"string","partitionId":"string","status?":"string|null","error?":"string|null","leaseId?":"string|null","delayMs?":"int|null"}]}`
	shapeAcked       shape = `[{"index":"int","transactionId":"string","success":"bool","error":"string|null","leaseReleased":"bool","dlq":"bool","noop":"bool","queueName":"string|null","partitionName":"string|null"}]`
	shapeTransaction shape = `{"operations":[{"type":"string"}],"requiredLeases|null?":["string"]}`
	shapeTransacted  shape = `{"transactionId":"uuid","success":"bool","error?":"string","code?":"string","results":[{"index":"int","type":"string","success":"bool","transactionId":"string","messageId?":"uuid","queueName?":"string","error?":"string|null","dlq?":"bool"}]}`
	shapeExtend      shape = `{"seconds?":"number|null"}`
	shapeExtended    shape = `{"leaseId":"string","success":"bool","renewed":"int","newExpiresAt":"time|null","expiresAt":"time|null","lease_expires_at":"time|null"}`

	shapeConfigure  shape = `{"queue":"string","namespace?":"string|null","task?":"string|null","mode?":"string","strict?":"bool","options|null?":{"*":"any"}}`
	shapeConfigured shape = `{"configured":"bool","queueId":"uuid","partitionId":"uuid|null","queue":"string","namespace":"string|null","task":"string|null","storage":"string",
		"options":` + shapeOptionValues + `,"ignored":["string"],"notApplied":["string"]}`
	shapeOptionValues = `{"priority":"int","leaseTime":"int","retryLimit":"int","retryDelay":"int","maxSize":"int","ttl":"int","deadLetterQueue":"bool","dlqAfterMaxRetries":"bool",
		"delayedProcessing":"int","windowBuffer":"int","retentionSeconds":"int","completedRetentionSeconds":"int","retentionEnabled":"bool","encryptionEnabled":"bool",
		"maxWaitTimeSeconds":"int","minPopWaitTime":"int","dedupWindowSeconds":"int","dlqRetentionSeconds":"int","redeliveryDelayMs":"int","maxDeliveries":"int"}`
	shapeOptions shape = `{"queue":"string","namespace":"string|null","task":"string|null","options":` + shapeOptionValues + `}`
	shapeQueues  shape = `{"queues":[{"id":"uuid","name":"string","namespace":"string|null","task":"string|null","createdAt":"time","partitions":"int|null","partitionCount":"int|null","retainedBytes":"int|null",
		"priority":"int","leaseTime":"int","retryLimit":"int","maxSize":"int","encryptionEnabled":"bool","segments?":{"segments":"int","messages":"int"},"ingestedPerSecond?":"number|null",
		"messages":{"total":"int|null","pending":"int|null","processing":"int|null","deadLetter?":"int|null"}}],"total?":"int","all?":"int","nextCursor?":"string|null"}`
	shapeCounters          = `{"total":"int","pending":"int","processing":"int","completed":"int","failed":"int|null","deadLetter":"int"}`
	shapeQueueConfig       = `{"leaseTime":"int","retryLimit":"int","retryDelay":"int","ttl":"int","maxQueueSize":"int","deadLetterQueue":"bool"}`
	shapeQueue       shape = `{"id":"uuid","name":"string","namespace":"string|null","task":"string|null","priority":"int","createdAt":"time","config":` + shapeQueueConfig + `,
		"partitions":[{"id":"uuid","name":"string","createdAt":"time","stats":` + shapeCounters + `,"oldestMessage":"time|null","newestMessage":"time|null"}],
		"partitionCount":"int","nextCursor":"string|null","totals":` + shapeCounters + `,"retainedBytes":"int","segments":{"segments":"int","messages":"int"},"options":` + shapeOptionValues + `,
		"maxSize":"int","queueDepth":"int","remainingCapacity":"int|null"}`
	shapeDeletedQueue shape = `{"deleted":"bool","queue":"string","existed":"bool","message?":"string"}`
	shapePartitions   shape = `{"partitions":[{"id":"uuid","name":"string","createdAt":"time","lastWriteAt":"time|null","messages":` + shapeCounters + `,
		"oldestMessage":"time|null","newestMessage":"time|null","leases?":[{"consumerGroup":"string","leaseId":"string|null","leaseExpiresAt":"time","live":"bool","heldSeconds":"number|null","messageCount":"int|null",
		"attemptCount":"int","batchRetryCount":"int"}]}],"nextCursor":"string|null"}`
	shapeDepth    shape = `{"queue":"string","group":"string|null","depth":"int","partitions":[{"partition":"string","partitionId":"uuid","depth":"int"}]}`
	shapePurge    shape = `{"partition?":"string|null","mode?":"string|null","dryRun?":"bool|null"}`
	shapePurged   shape = `{"queue":"string","dryRun":"bool","partitions":"int","messages":"int","unread":"int","done":"bool"}`
	shapeCapacity shape = `{"queues":[{"queue":"string","maxSize":"int","queueDepth":"int","remainingCapacity":"int","full":"bool"}]}`
	shapeOverview shape = `{"queues":"int","partitions":"int","namespaces":"int","tasks":"int",
		"messages":{"total":"int","pending":"int","processing":"int","completed":"int","failed":"int","deadLetter":"int"},
		"lag":{"time":{"avg":"number","median":"number","min":"number","max":"number"},"offset":{"avg":"number","median":"number","min":"number","max":"number"}},
		"throughput":{"ingestedPerSecond":"number","processedPerSecond":"number"},"timestamp":"time","statsAge":"int"}`
	shapeNamespaces shape = `{"namespaces":[{"namespace":"string","queues":"int","partitions":"int","messages":{"total":"int","pending":"int"}}]}`
	shapeTaskNames  shape = `{"tasks":[{"task":"string","queues":"int","partitions":"int","messages":{"total":"int","pending":"int"}}]}`

	shapeGroups shape = `[{"name":"string","topics":["string"],"queueName":"string","queue":"string","members":"int","partitionCursors":"int","partitionsWithLag":"int","totalLag":"int",
		"maxTimeLag":"int","lagMessages":"int","lagSeconds":"int","state":"string","storage":"string","subscriptionMode":"string|null","subscriptionTimestamp":"time|null","subscriptionCreatedAt":"time|null"}]`
	shapeGroupPage       shape = `{"groups":` + shapeGroups + `,"total":"int","nextCursor":"string|null"}`
	shapeGroupPartitions shape = `{"partitions":[{"queue":"string","partition":"string","partitionId":"uuid","offsetLag":"int","timeLagSeconds":"int","totalConsumed":"int","lastConsumedAt":"time|null",
		"leaseActive":"bool","leaseId":"string|null","leaseExpiresAt":"time|null","attemptCount":"int","batchRetryCount":"int","abandoned":"bool","redeliveryAt":"time|null"}],
		"totals":{"partitions":"int","behind":"int","lag":"int","leased":"int","abandoned":"int","holders":"int"},"total":"int","nextCursor":"string|null"}`
	shapeLagging shape = `[{"consumer_group":"string","queue_name":"string","partition_name":"string","partition_id":"uuid","worker_id":"string|null","offset_lag":"int","time_lag_seconds":"int",
		"lag_hours":"number","oldest_unconsumed_at":"time","last_consumed_at":"time|null"}]`
	shapeGroup           shape = `{"*":{"partitions":[{"partition":"string","workerId":"string|null","lastConsumedAt":"time|null","totalConsumed":"int","offsetLag":"int","timeLagSeconds":"int|null","leaseActive":"bool"}]}}`
	shapeSubscription    shape = `{"subscriptionTimestamp":"string"}`
	shapeSubscribed      shape = `{"success":"bool","consumerGroup":"string","newTimestamp":"string","rowsUpdated":"int"}`
	shapeSeek            shape = `{"toEnd?":"bool|null","timestamp?":"string|null","offset?":"int|null","group?":"string|null","dryRun?":"bool|null"}`
	shapeSeekPreview           = `"dryRun?":"bool","partitionsMoved?":"int","again?":"int","skipped?":"int","pending?":"int","leases?":"int"`
	shapeSoughtGroup     shape = `{"success":"bool","consumerGroup":"string","queueName":"string","seekToEnd":"bool","targetTimestamp":"time|null","targetOffset?":"int","targetGroup?":"string","partitionName?":"string|null","partitionsUpdated":"int","updated?":"bool",` + shapeSeekPreview + `}`
	shapeSoughtPartition shape = `{"success":"bool","consumerGroup":"string","queueName":"string","partitionName":"string","seekToEnd":"bool","targetTimestamp":"time|null","targetOffset?":"int","targetGroup?":"string","partitionsUpdated?":"int","updated":"bool",` + shapeSeekPreview + `}`
	shapeDeletedGroup    shape = `{"success":"bool","consumerGroup":"string","queueName?":"string","deletedPartitions":"int","metadataDeleted":"bool"}`

	shapeMode           = `{"hasQueueMode":"bool","busGroupsCount":"int","type":"string"}`
	shapeContent        = `"id":"uuid|null","transactionId":"string|null","traceId":"uuid|null","producerSub":"string|null","isEncrypted":"bool","unreadable":"string|null","data":"any","payload":"any"`
	shapeStates         = `[{"name":"string","group":"string","consumed":"bool","leaseExpiresAt":"time|null"}]`
	shapeMessages shape = `{"messages":[{` + shapeContent + `,"txnHash":"string","partitionId":"uuid","queuePath":"string","queue":"string","partition":"string","namespace":"string","task":"string",
		"status":"string","queueStatus":"string","busStatus":{"consumedBy":"int","totalGroups":"int"},"queuePriority":"int","payloadAvailable":"bool","segment":{"seq":"int","frameIdx":"int"},
		"offset":"int","retryCount":"int","createdAt":"time","leaseExpiresAt":"time|null"}],"mode":` + shapeMode + `,"total":"int","nextCursor":"string|null","searched?":{"messages":"int","unreadable":"int","until":"time|null"}}`
	shapeMessage shape = `{` + shapeContent + `,"createdAt":"time","partitionId":"uuid","partition":"string","queue":"string","queuePath":"string","namespace":"string","task":"string","offset":"int",
		"status":"string","errorMessage":"string|null","retryCount":"int","leaseExpiresAt":"time|null",
		"queueConfig":{"leaseTime":"int","retryLimit":"int","retryDelay":"int","ttl":"int","priority":"int"},"mode":` + shapeMode + `,"consumerGroups":` + shapeStates + `,
		"deliveries":[{"group":"string","state":"string","attempts":"int|null","attemptsExact":"bool","failures":"int|null","leaseId":"string|null","acquiredAt":"time|null","expiresAt":"time|null","redeliveryAt":"time|null"}]}`
	shapePipeline shape = `{"traceId":"uuid","messages":[{` + shapeContent + `,"partitionId":"uuid","queue":"string","partition":"string","offset":"int","createdAt":"time","payloadAvailable":"bool",
		"status":"string","consumerGroups":` + shapeStates + `}],"total":"int"}`
	shapePartitionMessages shape = `{"partitionId":"uuid","queue":"string","partition":"string","logStart":"int","endOffset":"int","nextOffset":"int",
		"messages":[{"id":"uuid|null","transactionId":"string|null","traceId":"uuid|null","traceparent?":"string","producerSub":"string|null","isEncrypted":"bool","unreadable":"string|null","offset":"int","createdAt":"time","data":"any"}]}`
	shapeDeletedMessage shape = `{"success":"bool","partitionId":"uuid","transactionId":"string","message":"string"}`
	shapePagination           = `{"limit":"int","offset":"int"}`
	shapeDeadLetters    shape = `{"messages":[{"id":"uuid","transactionId":"string|null","partitionId":"uuid","queue":"string|null","partition":"string|null","consumerGroup":"string",
		"errorMessage":"string|null","retryCount":"int","data":"any","payload":"any","producerSub":"string|null","messageId":"uuid","offset":"int","traceId":"uuid|null","traceparent?":"string","createdAt":"time","failedAt":"time","isEncrypted?":"bool"}],
		"pagination":` + shapePagination + `,"total":"int","nextCursor":"string|null"}`
	shapeDeletedDeadLetters shape = `{"success":"bool","deleted":"int","queue":"string","consumerGroup":"string|null"}`
	shapeCount              shape = `{"count":"int"}`
	shapeErrorShapes        shape = `{"groups":[{"shape":"string","sample":"string","count":"int","queues":["string"],"firstFailedAt":"time","lastFailedAt":"time"}],"shapes":"int","total":"int","nextCursor":"string|null"}`
	shapeDestination        shape = `{"queue?":"string|null","partition?":"string|null"}`
	shapeReplayed           shape = `{"success":"bool","queue":"string","partition":"string","replayedAs":{"index":"int","message_id":"uuid","transaction_id":"string","queueName":"string","status":"string"},
		"dlqRowRemoved":"bool","result":"string","consumerGroup":"string","dlqId":"uuid","originalTransactionId":"string"}`
	shapeTaskFilter       = `{"queue?":"string","partition?":"string","consumerGroup?":"string","from?":"string","to?":"string","shape?":"string","error?":"string","transactionId?":"string","partitionId?":"uuid"}`
	shapeNewTask    shape = `{"kind":"string","filter":` + shapeTaskFilter + `,"destination|null?":{"queue?":"string|null","partition?":"string|null"},"rate?":"int|null","dryRun?":"bool|null"}`
	shapeTaskBody         = `{"id":"uuid","kind":"string","state":"string","filter":` + shapeTaskFilter + `,"destination|null":{"queue":"string|null","partition":"string|null"},"rate":"int",
		"total":"int","moved":"int","deleted":"int","duplicate":"int","skipped":"int","remaining":"int","lastError":"string|null","createdBy":"string|null","createdAt":"time","updatedAt":"time|null","finishedAt":"time|null"}`
	shapeTask  shape = shapeTaskBody
	shapeTasks shape = `{"tasks":[` + shapeTaskBody + `],"nextCursor":"string|null"}`

	shapeTrace       shape = `{"transactionId":"string","partitionId":"string","data":"any","consumerGroup?":"string|null","eventType?":"string|null","traceNames?":"any"}`
	shapeTraced      shape = `{"success":"bool","traceId":"uuid"}`
	shapeTraces      shape = `{"traces":[{"id":"uuid","event_type":"string","data":"any","consumer_group":"string","worker_id":"string|null","created_at":"time","trace_names":["string"]}]}`
	shapeNamedTraces shape = `{"traces":[{"id":"uuid","transaction_id":"string","partition_id":"uuid","event_type":"string","data":"any","consumer_group":"string","worker_id":"string|null",
		"created_at":"time","queue_name":"string","partition_name":"string","message_payload":"any","trace_names":["string"]}],"total":"int","pagination":` + shapePagination + `,"nextCursor":"string|null"}`
	shapeTraceNames shape = `{"trace_names":[{"trace_name":"string","trace_count":"int","message_count":"int","first_seen":"time","last_seen":"time"}],"total":"int","pagination":` + shapePagination + `,"nextCursor":"string|null"}`

	shapeLeases shape = `{"leases":[{"queue":"string","partition":"string","partitionId":"uuid","consumerGroup":"string","leaseId":"string","acquiredAt":"time|null","leaseExpiresAt":"time",
		"secondsRemaining":"number","heldSeconds":"number|null","messageCount":"int","batchRetryCount":"int","attemptCount":"int"}],"total":"int","abandoned":"int","pagination":` + shapePagination + `}`
	shapeUtilization shape = `{"queues":[{"queue":"string","totalPartitions":"int","leasedPartitions":"int","utilizationPct":"number|null"}]}`
	shapeRelease     shape = `{"partitionId":"string","consumerGroup?":"string|null","leaseId?":"string|null"}`
	shapeReleased    shape = `{"released":"bool","partitionId":"uuid","consumerGroup":"string","leaseId":"string|null","queue":"string|null","partition":"string|null"}`

	shapeRange        = `"timeRange":{"from":"time","to":"time"},"bucketMinutes":"int"`
	shapeStatus shape = `{` + shapeRange + `,"pointCount":"int","throughput":[{"timestamp":"time","ingested":"int","processed":"int","popMessages":"int","ingestedPerSecond":"number",
		"processedPerSecond":"number","popPerSecond":"number","avgLagMs":"number|null","maxLagMs":"number|null","avgEventLoopLagMs":"number|null","maxEventLoopLagMs":"number|null","minFreeSlots":"number|null",
		"dbErrors":"int","ackFailed":"int","dlqCount":"int","queenCpuUserPct":"number|null","queenCpuSysPct":"number|null","queenRssMb":"number|null",
		"dbPoolActive":"number|null","dbPoolIdle":"number|null","dbPoolSize":"number|null"}],
		"queues":[{"id":"uuid","name":"string","namespace":"string|null","task":"string|null","partitions":"int","totalConsumed":"int","pending":"int","processing":"int","completed":"int","dlq":"int"}],
		"messages":{"total":"int","pending":"int","processing":"int","completed":"int","failed":"int","deadLetter":"int","requests":{"push":"int","pop":"int","ack":"int"},
		"batchEfficiency":{"push":"number","pop":"number","ack":"number"}},
		"leases":{"active":"int","partitionsWithLeases":"int","totalBatchSize":"int","totalAcked":"int"},
		"deadLetterQueue":{"totalMessages":"int","currentMessages":"int","affectedPartitions":"int","topErrors":[{"error":"string|null","count":"int"}]},
		"workers":[{"hostname":"string","workerId":"int","avgEventLoopLagMs":"number|null","maxEventLoopLagMs":"number|null","freeSlots":"number|null","dbConnections":"number|null",
		"jobQueueSize":"number|null","messagesProcessed":"int"}],"errors":{"dbErrors":"int","ackFailed":"int","dlqMessages":"int"},"statsAge":"int"}`
	shapeQueueStatuses shape = `{"queues":[{"id":"uuid","name":"string","namespace":"string|null","task":"string|null","createdAt":"time","partitions":"int",
		"messages":{"total":"int","pending":"int","processing":"int","completed":"int","deadLetter":"int"}}],"pagination":` + shapePagination + `}`
	shapeQueueStatus shape = `{"queue":{"id":"uuid","name":"string","namespace":"string|null","task":"string|null","priority":"int","createdAt":"time",
		"config":` + shapeQueueConfig + `},
		"partitions":[{"id":"uuid","name":"string","createdAt":"time","messages":` + shapeCounters + `,"stats":` + shapeCounters + `,
		"pending":"int","processing":"int","completed":"int","dlq":"int","cursor":{"totalConsumed":"int","batchesConsumed":"int"},
		"lastActivity":"time|null","oldestMessage":"time|null","newestMessage":"time|null"}],"partitionCount":"int","nextCursor":"string|null",
		"totals":{"messages":` + shapeCounters + `}}`
	shapeVolume  shape = `{"dataPoints":[{"timestamp":"time","messages":"int"}],"interval":"string","from":"time","to":"time"}`
	shapeBuffers shape = `{"pending":"int","failed":"int","dbHealthy":"bool","worker":"int"}`

	shapeQueueLag shape = `[{"queueName":"string","popCount":"int","avgLagMs":"number|null","maxLagMs":"number|null","bucketMinutes":"int","bucketTime":"time"}]`
	shapeQueueOps shape = `{` + shapeRange + `,"series":[{"bucket":"time","queueName":"string","pushRequests":"int","pushMessages":"int","popMessages":"int","popEmpty":"int","ackRequests":"int",
		"ackSuccess":"int","ackFailed":"int","transactions":"int","partitionsCreated":"int","partitionsDeleted":"int","partitionCount":"int|null","avgLagMs":"number|null","maxLagMs":"number|null",
		"pushPerSecond":"number","popPerSecond":"number","ackPerSecond":"number","emptyPerSecond":"number","parkedCount":"number"}],"queues":["string"]}`
	shapeParked shape = `{` + shapeRange + `,"series":[{"bucket":"time","queueName":"string","hostname":"string","workerId":"int","parkedCount":"number"}],
		"replicas":[{"hostname":"string","workerId":"int"}]}`
	shapeDeletions           = `"retentionMsgs":"int","completedRetentionMsgs":"int","evictionMsgs":"int","purgeMsgs":"int","totalMsgs":"int","eventCount":"int"`
	shapeRetention     shape = `{` + shapeRange + `,"series":[{"bucket":"time",` + shapeDeletions + `}],"totals":{` + shapeDeletions + `}}`
	shapeGauge               = `{"avg":"number|null","min":"number|null","max":"number|null","last":"number|null"}`
	shapeThreads             = `{"pool_size":` + shapeGauge + `,"queue_size":` + shapeGauge + `}`
	shapeSystemMetrics shape = `{"timeRange":{"from":"time","to":"time"},"replicas":[{"hostname":"string","port":"int","workerId":"string","timeSeries":[{"timestamp":"time","sampleCount":"int",
		"metrics":{"cpu":{"user_us":` + shapeGauge + `,"system_us":` + shapeGauge + `},"memory":{"rss_bytes":` + shapeGauge + `,"virtual_bytes":` + shapeGauge + `},
		"database":{"pool_size":` + shapeGauge + `,"pool_idle":` + shapeGauge + `,"pool_active":` + shapeGauge + `},
		"threadpool":{"db":` + shapeThreads + `,"system":` + shapeThreads + `},"registries":{"response":` + shapeGauge + `},"shared_state":{"*":"any"}}}]}],"replicaCount":"int","bucketMinutes":"int","pointCount":"int"}`
	shapeWorkerMetrics shape = `{` + shapeRange + `,"pointCount":"int","timeSeries":[{"timestamp":"time","pushMessages":"int","popMessages":"int","ackMessages":"int","pushRequests":"int","popRequests":"int",
		"ackRequests":"int","jobsDone":"int","pushPerSecond":"number","popPerSecond":"number","ackPerSecond":"number","avgEventLoopLagMs":"number|null","maxEventLoopLagMs":"number|null",
		"avgFreeSlots":"number|null","minFreeSlots":"number|null","dbConnections":"number|null","avgJobQueueSize":"number|null","maxJobQueueSize":"number|null","backoffSize":"number|null",
		"avgLagMs":"number|null","maxLagMs":"number|null","lagCount":"int","dbErrors":"int","ackSuccess":"int","ackFailed":"int","dlqCount":"int"}],
		"workers":[{"hostname":"string","workerId":"int","avgEventLoopLagMs":"number|null","maxEventLoopLagMs":"number|null","freeSlots":"number|null","dbConnections":"number|null",
		"jobQueueSize":"number|null","backoffSize":"number|null","messagesProcessed":"int","lastSeen":"time"}],
		"queues":[{"queueName":"string","popCount":"int","avgLagMs":"number|null","maxLagMs":"number|null"}],
		"summary":{"totalPushMessages":"int","totalPopMessages":"int","totalAckMessages":"int","totalPushRequests":"int","totalPopRequests":"int","totalAckRequests":"int",
		"totalDbErrors":"int","totalAckFailed":"int","totalDlq":"int","pendingMessages":"int"}}`
	shapePostgres shape = `{"timestamp":"time","database":"string","databaseSize":"int","oldestSnapshot|null":{"pid":"int","applicationName":"string","state":"string|null","ageSeconds":"number|null","xidAge":"int","query":"string"},
		"lockWaits":[{"pid":"int","blockedBy":["int"],"waitEvent":"string|null","waitSeconds":"number|null","query":"string"}],
		"vacuumRunning":[{"pid":"int","table":"string","phase":"string","scannedPercentage":"number"}],"databaseCache":{"database":"string","diskReads":"int","cacheHits":"int","cacheHitRatio":"number|null"},
		"tableCache":[{"schema":"string","table":"string","diskReads":"int","cacheHits":"int","cacheHitRatio":"number|null"}],
		"indexCache":[{"schema":"string","table":"string","index":"string","diskReads":"int","cacheHits":"int","cacheHitRatio":"number|null"}],
		"cacheSummary":{"tables":{"diskReads":"int","cacheHits":"int","hitRatio":"number|null"},"indexes":{"diskReads":"int","cacheHits":"int","hitRatio":"number|null"}},
		"deadTuples":[{"schema":"string","table":"string","deadTuples":"int","liveTuples":"int","deadPercentage":"number|null","lastVacuum":"time|null","lastAutovacuum":"time|null"}],
		"hotUpdates":[{"schema":"string","table":"string","totalUpdates":"int","hotUpdates":"int","hotUpdatePercentage":"number|null"}],
		"activeQueries":[{"pid":"int","duration":"number|null","state":"string|null","query":"string|null","waitEventType":"string|null","waitEvent":"string|null"}],
		"autovacuumStatus":[{"table":"string","lastAutovacuum":"time|null","deadTuples":"int","autovacuumCount":"int","autoanalyzeCount":"int"}],
		"bufferConfig":{"sharedBuffers":"string","sharedBuffersSize":"string"},"bufferUsage":[{"object":"string","bufferedSize":"string","bufferedBytes":"int","percentOfCache":"number|null"}],
		"tableSizes":[{"table":"string","totalSize":"string","totalSizeBytes":"int","tableSize":"string","tableSizeBytes":"int","indexSize":"string","indexSizeBytes":"int"}]}`

	shapeMaintenance shape = `{"maintenanceMode":"bool","popMaintenanceMode":"bool","bufferedMessages":"int","bufferHealthy":"bool","bufferStats":{"pendingCount":"int","failedCount":"int","dbHealthy":"bool",
		"failedFiles":{"count":"int","totalBytes":"int","totalMB":"number","failoverCount":"int","qos0Count":"int"}}}`
	shapeMaintenanceSet shape = `{"maintenanceMode":"bool","bufferedMessages":"int","bufferHealthy":"bool","message":"string"}`
	shapePopMaintenance shape = `{"popMaintenanceMode":"bool","message":"string"}`
	shapeSwitch         shape = `{"enabled":"bool"}`
	shapeSharedState    shape = `{"enabled":"bool","reason":"string","maintenance_mode":"bool","pop_maintenance_mode":"bool"}`
	shapeMesh           shape = `{"enabled":"bool","maintenance_mode":"bool","pop_maintenance_mode":"bool","reason?":"string","server_id?":"string","transport?":"string","port?":"int","peer_count?":"int",
		"peers?":[{"host":"string","port":"int","connected":"bool","resolved":"bool","resolved_ip":"string","server_id":"string"}],"servers_alive?":"int","servers_dead?":"int",
		"messages_sent?":"int","messages_received?":"int","messages_dropped?":"int","signature_failures?":"int","handshake_failures?":"int","sequence_rejections?":"int","running?":"bool"}`
	shapeBrokers    shape = `{"brokers":[{"id":"string","instance":"uuid","version":"string","address":"string","startedAt":"time","lastSeen":"time","alive":"bool","self":"bool"}],"total":"int","nextCursor":"string|null"}`
	shapeSettings   shape = `{"settings":[{"name":"string","value":"string","source":"string","default":"string","doc":"string"}]}`
	shapeRefreshed  shape = `{"engine":"string","queuesUpdated":"int","segPartitions":"int","namespaces":{"namespacesUpdated":"int"},"tasks":{"tasksUpdated":"int"},"system":{"systemUpdated":"int"},"refreshedAt":"time"}`
	shapeNotify     shape = `{"queue":"string","partition?":"string|null"}`
	shapeStatusWord shape = `{"status":"string"}`
	shapeHealth     shape = `{"status":"string","database":"string","engine":"string","version":"string"}`
	shapeMetrics    shape = `{"uptime":"int","requests":{"total":"int","rate":"number"},"messages":{"total":"int","rate":"number"},"database":{"poolSize":"int","idleConnections":"int","waitingRequests":"int"},
		"memory":{"rss":"int","heapTotal":"int","heapUsed":"int","external":"int","arrayBuffers":"int"},"cpu":{"user":"int","system":"int"}}`

	shapeStreams shape = `{"streams":[{"id":"uuid","name":"string","sourceQueue":"string","sinkQueue":"string|null","configHash":"string","createdAt":"time","updatedAt":"time",
		"stateRows":"int","stateRowsExact":"bool","stateBytes":"int","partitions":"int","oldestState":"time|null","newestState":"time|null",
		"watermark":"time|null","newestWatermark":"time|null","watermarkPartitions":"int","watermarkExact":"bool","lateRecords":"int|null"}],"total":"int","nextCursor":"string|null"}`
	shapeRegister   shape = `{"name":"string","source_queue":"string","sink_queue?":"string|null","config_hash":"string","reset?":"bool|null"}`
	shapeRegistered shape = `{"success":"bool","query_id":"uuid","name":"string","config_hash":"string","fresh":"bool","reset":"bool"}`
	shapeStateGet   shape = `{"query_id":"uuid","partition_id":"uuid","keys|null?":["string"],"key_prefix?":"string|null","ripe_at_or_before?":"number|null"}`
	shapeState      shape = `{"success":"bool","rows":[{"key":"string","value":"any","updated_at":"time"}]}`
	shapeRipeAsk    shape = `{"query_id":"uuid","consumer_group?":"string|null","grace_ms?":"number|null","idle_ms?":"number|null","limit?":"int|null"}`
	shapeRipe       shape = `{"success":"bool","partitions":[{"partition_id":"uuid","partition":"string","windowEnd":"number"}]}`
	shapeCycle      shape = `{"query_id":"uuid","partition_id":"uuid","consumer_group?":"string|null","if_state|null?":[{"key":"string","value?":"any"}],"state_ops|null?":[{"type":"string","key":"string","value?":"any"}],
		"push_items|null?":[{"queue":"string","partition?":"string|null","payload?":"any","data?":"any","messageId?":"string|null","transactionId?":"string|null","traceId?":"string|null","traceparent?":"string|null"}],
		"ack|null?":{"transactionId?":"string|null","leaseId?":"string|null","status?":"string|null","count?":"int|null"},"release_lease?":"bool|null"}`
	shapeCycled shape = `{"success":"bool","query_id":"uuid","partition_id":"uuid","queueName":"string|null","state_ops_applied":"int","push_results":[{"queue":"string","partition":"string","status":"string","partitionId?":"uuid|null","baseOffset?":"int|null","createdAt?":"time|null"}],
		"ack_result|null":{"success":"bool","count":"int","lease_released":"bool","dlq":"bool"},"error?":"string"}`

	shapeCluster        = `{"id":"string","slug":"string","role?":"string","tenant_slug?":"string","tenant_id?":"uuid","status?":"string","cell_slug?":"string"}`
	shapeIdentity shape = `{"user_id":"string","email":"string|null","tenant_slug":"string","is_operator":"bool","operator_enabled":"bool","operator_live":"bool","acting_cluster":` + shapeCluster + `,
		"clusters":[` + shapeCluster + `],"act_cluster_header":"string","role":"string","roles?":["string"],"cluster|null":` + shapeCluster + `,"standalone":"bool"}`
)
