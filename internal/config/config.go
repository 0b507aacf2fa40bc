package config

import "time"

// Config is every setting of the broker.
type Config struct {
	Server    Server    `title:"HTTP server"`
	TLS       TLS       `title:"TLS of the HTTP server"`
	Auth      Auth      `title:"Authentication"`
	Tenancy   Tenancy   `title:"Tenants and limits"`
	Secrets   Secrets   `title:"Encryption at rest"`
	Database  Database  `title:"PostgreSQL"`
	Private   Private   `title:"Private PostgreSQL"`
	Pop       Pop       `title:"Pop and long poll"`
	HotList   HotList   `title:"Hot list"`
	Push      Push      `title:"Push"`
	Ack       Ack       `title:"Acknowledgements"`
	Admission Admission `title:"Admission of write transactions"`
	Caches    Caches    `title:"Caches"`
	Mesh      Mesh      `title:"Several brokers"`
	Buffer    Buffer    `title:"File buffer"`
	Retention Retention `title:"Retention"`
	Metrics   Metrics   `title:"Statistics and metrics"`
	Log       Log       `title:"Logging"`

	// Unused names the set variables that are known but have no effect in this version, sorted.
	Unused []Unused
	// Unknown names the set QUEEN_ variables that nobody declared, sorted, each with the nearest declared name.
	Unknown []Unknown

	values []Value
}

// Server is how the broker listens and stops.
type Server struct {
	Port            int           `env:"PORT" default:"6632" min:"0" max:"65535" doc:"TCP port of the HTTP listener. 0 takes any free port, which the start-up line names."`
	BindAddr        string        `env:"QUEEN_BIND_ADDR" doc:"Address the HTTP listener binds to; 0.0.0.0 is every IPv4 address of the machine, :: every one. Empty: every address when callers are authenticated (JWT_ENABLED or QUEEN_TLS_CLIENT_CA), and this machine alone (127.0.0.1 and ::1) when they are not."`
	MaxBodyBytes    int64         `env:"QUEEN_MAX_BODY_BYTES" default:"67108864" min:"1024" max:"1073741824" unit:"bytes" doc:"Largest request body. A larger one is answered 413."`
	MaxInflightBody int64         `env:"QUEEN_MAX_INFLIGHT_BODY_BYTES" default:"268435456" min:"1048576" max:"1099511627776" unit:"bytes" doc:"Most bytes of request bodies held in memory at a time. A quarter is kept for bodies of at most 64 KiB. A request beyond it waits up to 5 s and is then answered 503 (overloaded). A body larger than all of it is served alone."`
	FastPath        bool          `env:"QUEEN_HTTP_FAST_PATH" default:"true" doc:"Serve plain HTTP/1.1 requests that push, pop, acknowledge, extend a lease or run a transaction with a reader of the broker's own, which takes less time and memory than the general server. Whatever is not of the simplest form goes to the general server, connection and all. Linux only; never with TLS."`
	ServerID        string        `env:"QUEEN_SERVER_ID,HOSTNAME" blank:"default" auto:"random, queen-xxxxxxxx" doc:"Name of this replica in logs, metrics and the database's list of sessions."`
	ShutdownDelay   time.Duration `env:"QUEEN_SHUTDOWN_DELAY_MS" default:"0" min:"0" max:"600000" unit:"ms" doc:"How long the broker stays open after a stop signal while its readiness already says no, so that load balancers can take it out."`
	HeapHeadroom    int64         `env:"QUEEN_HEAP_HEADROOM_MB" default:"24" min:"0" max:"1048576" unit:"MiB" doc:"How much the broker program lets its heap grow over what is in use before it collects garbage, at least 15 percent and at most four times what is in use. 0 or a GOGC in the environment leaves it to the rule of Go, which is as much again."`
	ProfileAddr     string        `env:"QUEEN_PPROF_ADDR" doc:"Loopback address and port (127.0.0.1:6060) on which profiles of the process are served below /debug/pprof/, without authentication, in the form of the Go tools. Empty: none. No profile is ever served on PORT."`
	ShutdownTimeout time.Duration `env:"QUEEN_SHUTDOWN_TIMEOUT_MS" default:"25000" min:"100" max:"3600000" unit:"ms" doc:"How long requests in flight may take to finish after a stop signal. Then their connections are closed."`
}

// TLS is what the HTTP listener shows and asks for.
type TLS struct {
	Cert     string `env:"QUEEN_TLS_CERT" doc:"File with the certificate chain (PEM). With it the listener speaks TLS only. A changed file is taken up without a restart."`
	Key      string `env:"QUEEN_TLS_KEY" doc:"File with the private key of QUEEN_TLS_CERT (PEM)."`
	ClientCA string `env:"QUEEN_TLS_CLIENT_CA" doc:"File with the authorities (PEM) one of which must have signed every client's certificate. Without it clients need none."`
}

// Auth is who may call. Names and defaults are those of the wire contract.
type Auth struct {
	Required        bool          `env:"QUEEN_REQUIRE_AUTH" default:"false" doc:"Refuse to start unless callers are authenticated: by token (JWT_ENABLED) or by certificate (QUEEN_TLS_CLIENT_CA)."`
	Enabled         bool          `env:"JWT_ENABLED" default:"false" doc:"Ask for a token on every route that is not public. Off, everybody who reaches the port may do everything."`
	Algorithm       string        `env:"JWT_ALGORITHM" default:"HS256" blank:"default" doc:"What tokens may be signed with: HS256, HS384, HS512, RS256 (also RS384 and RS512), RS384, RS512, ES256, ES384, ES512, EdDSA, or auto for HS, RS and EdDSA as far as there are keys."`
	Secret          Secret        `env:"JWT_SECRET" doc:"Key of HS tokens, best 32 random bytes or more."`
	PublicKey       string        `env:"JWT_PUBLIC_KEY" doc:"Public key (PEM text) of RS, ES and EdDSA tokens. Consulted before JWT_JWKS_URL."`
	JWKSURL         string        `env:"JWT_JWKS_URL" doc:"Where the public keys of RS, ES and EdDSA tokens are published as a key set."`
	RefreshInterval time.Duration `env:"JWT_JWKS_REFRESH_INTERVAL" default:"3600" min:"1" max:"604800" unit:"s" doc:"How often the key set is fetched again. An unknown key id fetches it at once, at most every 5 s."`
	FetchTimeout    time.Duration `env:"JWT_JWKS_TIMEOUT_MS" default:"5000" min:"10" max:"60000" unit:"ms" doc:"How long a fetch of the key set may take."`
	Issuer          string        `env:"JWT_ISSUER" doc:"What iss of a token must be. Empty is not checked."`
	Audience        string        `env:"JWT_AUDIENCE" doc:"What aud of a token must be or contain. Empty is not checked."`
	ClockSkew       time.Duration `env:"JWT_CLOCK_SKEW" default:"30" min:"0" max:"3600" unit:"s" doc:"How far the clocks of issuer and broker may differ."`
	SkipPaths       string        `env:"JWT_SKIP_PATHS" default:"/health,/metrics/prometheus,/metrics,/" doc:"Paths that need no token, separated by commas. One that ends in a slash stands for all below it, except / itself. Set but empty: none."`
	RoleClaim       string        `env:"JWT_ROLES_CLAIM" default:"role" blank:"default" doc:"Claim with one role."`
	RolesClaim      string        `env:"JWT_ROLES_ARRAY_CLAIM" default:"roles" blank:"default" doc:"Claim with a list of roles. A token holds the union of both claims."`
	RoleAdmin       string        `env:"JWT_ROLE_ADMIN" default:"admin" blank:"default" doc:"Word for the role that may do everything."`
	RoleReadWrite   string        `env:"JWT_ROLE_READ_WRITE" default:"read-write" blank:"default" doc:"Word for the role that may push, pop, acknowledge and configure."`
	RoleReadOnly    string        `env:"JWT_ROLE_READ_ONLY" default:"read-only" blank:"default" doc:"Word for the role that may look and not change."`
	RoleWriteOnly   string        `env:"JWT_ROLE_WRITE_ONLY" default:"write-only" blank:"default" doc:"Word for the role that may only push."`
}

// Tenancy is how tenants and browsers are told apart and bounded.
type Tenancy struct {
	Header      bool    `env:"QUEEN_TENANCY_HEADER" default:"false" doc:"Take the tenant of a request from the header x-queen-tenant (a UUID). The header is not authenticated: only a proxy may reach the port, and it must set the header."`
	Labels      bool    `env:"QUEEN_METRICS_TENANT_LABEL" default:"false" doc:"Split the series of a queue on the Prometheus page by tenant, in a label tenant, where QUEEN_TENANCY_HEADER is on. The page is public and then names every tenant: keep it from the tenants. Off: queues of one name are summed."`
	CORSOrigins string  `env:"QUEEN_CORS_ORIGINS" doc:"Origins (https://host, separated by commas, or *) whose pages may call the API from a browser. Empty: none."`
	Rate        float64 `env:"QUEEN_RATE_LIMIT" default:"0" min:"0" max:"10000000" doc:"Most requests a second for each tenant of this broker; beyond it 429 with Retry-After. 0 is any number."`
	Burst       int     `env:"QUEEN_RATE_BURST" default:"0" min:"0" max:"10000000" unit:"requests" doc:"Most requests of a tenant at once. 0 is what QUEEN_RATE_LIMIT allows in a second."`
	MaxParked   int     `env:"QUEEN_MAX_PARKED_POPS" default:"0" min:"0" max:"10000000" unit:"requests" doc:"Most waiting pops of a tenant at a time; beyond it 429. 0 is any number."`
}

// Secrets are the keys that payloads are encrypted with.
type Secrets struct {
	Key     Secret `env:"QUEEN_ENCRYPTION_KEY" doc:"Key that encrypts the payloads of queues with encryptionEnabled (AES-256-GCM): 64 hexadecimal digits. The same on every broker. Without it such queues refuse messages."`
	OldKeys Secret `env:"QUEEN_ENCRYPTION_KEYS_OLD" doc:"Older keys, separated by commas, that still decrypt."`
	Sniff   bool   `env:"QUEEN_ENCRYPTION_SNIFF" default:"false" doc:"Also decrypt payloads that only look encrypted, for databases filled by older brokers. A message of that shape that somebody made up is then decrypted too."`
}

// Database is the PostgreSQL that the broker uses. With neither URL nor any PG_ variable set, the broker starts a private one.
type Database struct {
	URL                   Secret        `env:"DATABASE_URL" doc:"Connection string of PostgreSQL (postgres://user:password@host:port/database?sslmode=...). Outranks every PG_ variable. With this and all PG_ variables unset, the broker starts a private PostgreSQL."`
	Host                  string        `env:"PG_HOST" default:"localhost" blank:"default" doc:"Host name, address, or directory of the Unix socket."`
	Port                  int           `env:"PG_PORT" default:"5432" min:"1" max:"65535" doc:"TCP port of PostgreSQL."`
	User                  string        `env:"PG_USER" default:"postgres" blank:"default" doc:"Role the broker logs in as."`
	Password              Secret        `env:"PG_PASSWORD" default:"postgres" doc:"Password of the role. Set but empty means no password."`
	Name                  string        `env:"PG_DATABASE,PG_DB" default:"postgres" blank:"default" doc:"Database name."`
	UseSSL                bool          `env:"PG_USE_SSL" default:"false" doc:"Require TLS to PostgreSQL; there is no fallback to plain text. With DATABASE_URL use its sslmode instead."`
	SSLRejectUnauthorized bool          `env:"PG_SSL_REJECT_UNAUTHORIZED" default:"true" doc:"Verify PostgreSQL's certificate chain and host name. false keeps the encryption and drops the proof of identity."`
	SSLRootCert           string        `env:"PG_SSL_ROOT_CERT" doc:"Authorities (PEM text) that PostgreSQL's certificate is verified against, instead of those of the system."`
	PoolSize              int           `env:"DB_POOL_SIZE" auto:"160; with the private PostgreSQL 16 for each core, at least 32, at most 160" default:"0" min:"4" max:"10000" unit:"connections" doc:"Most connections this broker opens. They are opened when needed. Keep the sum over all brokers below PostgreSQL's max_connections."`
	StatementTimeout      time.Duration `env:"QUEEN_STMT_TIMEOUT_MS" default:"30000" min:"100" max:"3600000" unit:"ms" doc:"Longest a statement may run before it is cancelled on the server."`
	ApplySchema           bool          `env:"QUEEN_APPLY_SCHEMA" default:"true" doc:"Apply the embedded schema at start. Turn off when the role may not create objects and queen schema apply ran under another."`

	// Configured tells that DATABASE_URL or a PG_ variable named a database, so that no private PostgreSQL is started.
	Configured bool `env:"-"`
}

// Private is the PostgreSQL that the broker starts when no database is configured.
type Private struct {
	DataDir string `env:"QUEEN_DATA_DIR" blank:"default" auto:"/var/lib/queen/data as root, else $XDG_DATA_HOME/queen or ~/.local/share/queen" doc:"Directory of the private PostgreSQL, kept between runs. One broker at a time."`
}

// Pop is how consumers wait and where new groups start.
type Pop struct {
	MaxAnswerBytes          int64         `env:"QUEEN_MAX_ANSWER_BYTES" default:"67108864" min:"1024" max:"1073741824" unit:"bytes" doc:"Most uncompressed message content in the answer of one pop. A batch that is larger ends earlier; the rest stays claimable. One message always fits, whatever its size."`
	MaxInflightAnswers      int64         `env:"QUEEN_MAX_INFLIGHT_ANSWER_BYTES" default:"268435456" min:"1048576" max:"1099511627776" unit:"bytes" doc:"Most memory that the answers of all pops take at a time, from their claim until they are sent: as stored, unpacked and rendered, so about three times their content. A pop beyond it waits, or answers fewer messages; one that does not wait for messages is answered 503 (overloaded) after 5 s. A quarter is kept for small answers. An answer larger than the rest is served alone."`
	DefaultTimeout          time.Duration `env:"DEFAULT_TIMEOUT,POP_DEFAULT_TIMEOUT_MS" default:"30000" min:"1" max:"3600000" unit:"ms" doc:"How long a waiting pop stays open when it names no timeout."`
	DefaultSubscriptionMode string        `env:"DEFAULT_SUBSCRIPTION_MODE" default:"all" oneof:"all|new" doc:"Where a consumer group that names no subscription mode starts: at the oldest message kept (all) or at the messages pushed from now on (new)."`
	WaitInitialInterval     time.Duration `env:"POP_WAIT_INITIAL_INTERVAL_MS" default:"100" min:"1" max:"60000" unit:"ms" doc:"First pause of a waiting pop between two looks when no push wakes it."`
	WaitBackoffThreshold    int           `env:"POP_WAIT_BACKOFF_THRESHOLD" default:"3" min:"1" max:"1000000" unit:"looks" doc:"Empty looks of a waiting pop before its pause starts to grow."`
	WaitBackoffMultiplier   float64       `env:"POP_WAIT_BACKOFF_MULTIPLIER" default:"2.0" min:"1" max:"100" doc:"Factor by which the pause grows after each further empty look."`
	Fusion                  bool          `env:"QUEEN_POP_FUSION" default:"true" doc:"Let concurrent pops of one group claim with one statement and one commit. Needs the hot list."`
	Handover                bool          `env:"QUEEN_POP_HANDOVER" default:"true" doc:"Lease messages to pops that wait for them in the commit that stores them, where nothing else of the partition is waiting; such a pop needs no claim. Needs the hot list."`
	FusionMaxJobs           int           `env:"QUEEN_POP_FUSION_MAX_JOBS" default:"64" min:"2" max:"1024" unit:"pops" doc:"Most pops of one such claim."`
	FusionConcurrency       int           `env:"QUEEN_POP_FUSION_CONCURRENCY" default:"2" min:"1" max:"64" unit:"claims" doc:"Such claims of one group under way at once. All but the first need pops that will take 32 partitions."`
	WaitMaxInterval         time.Duration `env:"POP_WAIT_MAX_INTERVAL_MS" default:"1000" min:"1" max:"60000" unit:"ms" doc:"Longest pause of a waiting pop between two looks."`
}

// HotList is what the broker remembers about partitions with work, so that a pop of a queue need not search for them.
type HotList struct {
	Enabled      bool          `env:"QUEEN_HOTLIST" default:"true" doc:"Keep in memory which partitions have messages for which group. Off, every pop of a queue searches the database; deliveries are the same."`
	Shards       int           `env:"QUEEN_HOTLIST_SHARDS" auto:"QUEEN_V2_FUSION_SHARDS" default:"0" min:"1" max:"1024" doc:"Mutexes over which the partitions of one group are spread."`
	WindowBatch  int           `env:"QUEEN_HOTLIST_WINDOW_BATCH" default:"100" min:"1" max:"1000000" unit:"messages" doc:"Messages that end the windowBuffer of a partition before its time."`
	Reseed       time.Duration `env:"QUEEN_HOTLIST_RESEED_MS" default:"30000" min:"100" max:"3600000" unit:"ms" doc:"How often the database is asked which partitions are pending. Bounds how late a message is delivered of which this broker heard nothing."`
	ReseedWindow time.Duration `env:"QUEEN_HOTLIST_RESEED_WINDOW_MS" auto:"4 x QUEEN_HOTLIST_RESEED_MS, at least 120000" default:"0" min:"1000" max:"86400000" unit:"ms" doc:"How far back such a question looks for partitions written to."`
	ReseedFull   time.Duration `env:"QUEEN_HOTLIST_RESEED_FULL_MS" default:"300000" min:"0" max:"86400000" unit:"ms" doc:"How often the question is about all partitions. 0 makes every one so."`
	Trace        bool          `env:"QUEEN_HOTLIST_TRACE" default:"false" doc:"Log what every claim of the hot list found, every question to the database about pending partitions and every group that comes and goes: to find out why a message was late. A line for each claim, names of queues and groups included."`
	IdleSweep    time.Duration `env:"QUEEN_HOTLIST_IDLE_SWEEP_MS" default:"300000" min:"1000" max:"86400000" unit:"ms" doc:"After how much time without a pop a group is dropped from memory."`
}

// Push is how pushes share commits.
type Push struct {
	Shards      int           `env:"QUEEN_V2_FUSION_SHARDS" default:"1" min:"1" max:"1024" doc:"Shards over which partitions are spread. Each shard commits on its own, so that more of them share fewer commits; one takes in several hundred thousand requests a second. The original's 8 let most messages commit alone."`
	MaxInflight int           `env:"QUEEN_V2_FUSION_MAX_INFLIGHT" default:"4" min:"1" max:"1024" unit:"commits" doc:"Commits one shard may have under way at once. All but the first need 32 segments or 256 KiB of messages."`
	BundleMax   int           `env:"QUEEN_V2_BUNDLE_MAX" default:"256" min:"1" max:"1024" unit:"segments" doc:"Most segments (one for each partition) in one commit."`
	Hold        time.Duration `env:"QUEEN_V2_FUSION_HOLD_MS" default:"3" min:"1" max:"1000" unit:"ms" doc:"How often a shard that waits for its turn to commit looks again without being told. A backstop for slow commits: with a healthy database it decides no latency."`
	ZstdLevel   int           `env:"QUEEN_V2_ZSTD_LEVEL" default:"1" min:"1" max:"22" doc:"Compression level of stored segments, on zstd's own scale. The original's 3 takes up to three times as long and saves nothing: docs/performance.md."`
	DedupCache  bool          `env:"QUEEN_DEDUP_CACHE" default:"true" doc:"Remember which transaction ids are stored, so that the database looks for repeats only where the broker cannot vouch for there being none. Changes no verdict."`
	DedupMB     int           `env:"QUEEN_DEDUP_CACHE_MB" default:"512" min:"1" max:"1000000" unit:"MiB" doc:"Most memory for that. A message inside its queue's deduplication window takes about eight bytes."`
}

// Ack is how acknowledgements of whole batches are recognised and share commits.
type Ack struct {
	Registry   bool `env:"QUEEN_ACK_REGISTRY" default:"true" doc:"Recognise an acknowledgement that completes exactly one delivered batch from memory, so that the database need not look its transaction ids up. The outcome is the same without."`
	RegistryMB int  `env:"QUEEN_ACK_REGISTRY_MB" default:"64" min:"1" max:"65536" unit:"MB" doc:"Most memory for delivered batches that are not acknowledged yet. The oldest are forgotten first, which costs a look-up each."`
	Fusion     bool `env:"QUEEN_ACK_FUSION" default:"true" doc:"Commit recognised acknowledgements of many requests together. Off, each has a commit of its own."`
	Shards     int  `env:"QUEEN_ACK_FUSION_SHARDS" auto:"QUEEN_V2_FUSION_SHARDS" default:"0" min:"1" max:"1024" doc:"Shards over which partitions are spread for that. Each has one commit under way, so that more of them carry less each."`
}

// Admission is how many write transactions may be in flight.
type Admission struct {
	PoolReserve int `env:"QUEEN_ADMISSION_POOL_RESERVE" default:"16" min:"1" max:"10000" unit:"connections" doc:"Connections of the pool kept for reads and administration. Never more than half of it."`
	Max         int `env:"QUEEN_ADMISSION_MAX" default:"128" min:"1" max:"10000" unit:"transactions" doc:"Most write transactions in flight, never more than the pool less its reserve."`
}

// Caches is how stale what the broker remembers of the database may get.
type Caches struct {
	RefreshInterval time.Duration `env:"QUEEN_CACHE_REFRESH_INTERVAL_MS" default:"60000" min:"100" max:"3600000" unit:"ms" doc:"How often everything the broker remembers of options, subscriptions and owners is read from the database again."`
}

// Retention is how what rules allow is deleted, by one broker at a time.
type Retention struct {
	Interval       time.Duration `env:"RETENTION_INTERVAL" default:"5000" min:"100" max:"3600000" unit:"ms" doc:"Time from the start of one retention cycle to the next. Brokers that are not the leader ask as often whether they may lead."`
	BatchSize      int           `env:"RETENTION_BATCH_SIZE" default:"1000" min:"1" max:"100000" unit:"segments" doc:"Most segments (or hash rows) that one step deletes. The partition takes no pushes while a step runs."`
	Parallelism    int           `env:"RETENTION_PARALLELISM" default:"1" min:"1" max:"16" unit:"partitions" doc:"Partitions that retention works on at once."`
	DueCap         int           `env:"QUEEN_RETENTION_DUE_CAP" default:"0" min:"0" max:"1000000" unit:"partitions" doc:"Partitions that one cycle takes on. 0 is RETENTION_BATCH_SIZE x RETENTION_PARALLELISM x 5."`
	SafetyWalk     time.Duration `env:"QUEEN_RETENTION_SAFETY_WALK_MS" default:"86400000" min:"60000" max:"2592000000" unit:"ms" doc:"Time between two walks over all partitions that compare what retention knows of them with what they hold. One is made when a broker first leads."`
	CleanupDays    int           `env:"PARTITION_CLEANUP_DAYS" default:"30" min:"1" max:"3650" unit:"days" doc:"How long an empty partition that nobody uses is kept."`
	CleanupEnabled bool          `env:"QUEEN_PARTITION_CLEANUP_ENABLED" default:"true" doc:"Remove such partitions."`
	MetricsDays    int           `env:"METRICS_RETENTION_DAYS" default:"90" min:"1" max:"3650" unit:"days" doc:"How long metrics, retention history and message traces are kept."`
}

// Metrics is how often figures are computed and stored.
type Metrics struct {
	StatsInterval         time.Duration `env:"STATS_INTERVAL_MS" default:"10000" min:"1000" max:"3600000" unit:"ms" doc:"How often the statistics behind lists and status pages are computed, by one broker at a time. Longer by itself where a computation takes more than a tenth of it."`
	RetainedBytesInterval time.Duration `env:"RETAINED_BYTES_INTERVAL_MS" default:"600000" min:"1000" max:"86400000" unit:"ms" doc:"How often the stored bytes of every queue are added up, which reads a row for each segment."`
	FlushInterval         time.Duration `env:"METRICS_FLUSH_MS" default:"60000" min:"1000" max:"3600000" unit:"ms" doc:"How often this broker stores what it counted."`
}

// Mesh is how the brokers of one database tell each other what happened.
type Mesh struct {
	Enabled   bool   `env:"QUEEN_SYNC_ENABLED" default:"true" doc:"Tell the other brokers of the database through LISTEN/NOTIFY what became available and what changed. Off, they find out by looking, which takes longer; nothing else differs."`
	ListenURL Secret `env:"QUEEN_LISTEN_URL" auto:"as DATABASE_URL or the PG_ variables" doc:"Connection string of PostgreSQL itself, when DATABASE_URL leads through a pooler that shares sessions among clients, such as PgBouncer in transaction mode. Sessions that listen, lead or apply the schema go there; the pool then prepares nothing by name and takes its timeouts from the role: docs/pooler.md."`
}

// Buffer is how pushes are kept on disk while the database is away or pushes are in maintenance.
type Buffer struct {
	Dir           string        `env:"FILE_BUFFER_DIR" blank:"default" auto:"/var/lib/queen/buffers as root, else buffers below the default of QUEEN_DATA_DIR" doc:"Directory of the file buffer. Each broker needs its own. What lies there belongs to the database it was kept for: a broker that is pointed at another one does not start until the directory is empty, or another is named. off keeps nothing: pushes fail while the database is away."`
	MaxBytes      int64         `env:"FILE_BUFFER_MAX_BYTES" default:"10737418240" min:"0" max:"1125899906842624" unit:"bytes" doc:"Most bytes that the files may take together. Beyond it pushes fail with code buffer_full. 0 is no limit but that of the disk."`
	Fsync         string        `env:"FILE_BUFFER_FSYNC" default:"always" oneof:"always|interval|never" doc:"When kept pushes are forced to the disk: before they are answered (always), within FILE_BUFFER_FLUSH_MS of it (interval), or when the operating system likes (never). With the latter two a power cut loses what was answered since; the end of the broker alone loses nothing."`
	FlushInterval time.Duration `env:"FILE_BUFFER_FLUSH_MS" default:"100" min:"1" max:"60000" unit:"ms" doc:"How often the files are forced to the disk when FILE_BUFFER_FSYNC is interval."`
	MaxBatch      int           `env:"FILE_BUFFER_MAX_BATCH" default:"100" min:"1" max:"100000" unit:"messages" doc:"Most messages of different pushes that are forced to the disk together. A push is never split."`
	EventsPerFile int           `env:"FILE_BUFFER_EVENTS_PER_FILE" default:"10000" min:"1" max:"1000000" unit:"messages" doc:"Messages after which a file is complete and another one is begun."`
}

// Log is what the broker writes to standard error.
type Log struct {
	Level string `env:"LOG_LEVEL" default:"info" oneof:"debug|info|warn|error" doc:"Least severe level that is written."`
	JSON  bool   `env:"QUEEN_LOG_JSON" default:"false" doc:"Write one JSON object a line instead of key=value pairs."`
}
