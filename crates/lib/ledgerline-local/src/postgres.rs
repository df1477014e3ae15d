//! A PostgreSQL server in a folder of its own: Debian's, or any other that is installed.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The file with the certificate of the authority that signed the server's certificate.
const AUTHORITY: &str = "authority.pem";
/// The name and the password of the server's only user.
const USER: &str = "ledgerline";
const PASSWORD: &str = "local";
/// The shell script that runs the server. It stops the server when the parent process exits,
/// because the shell then reads the end of its input.
const SCRIPT: &str = r#"postgres=$1; shift; "$postgres" "$@" & server=$!
read -r _; kill -INT $server 2>/dev/null; wait $server"#;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    port: u16,
    shell: Child,
}

impl PostgresServer {
    /// Starts a server with its data in this folder, and creates the data if there are none. The
    /// server listens on this port, or on a free one. `settings` are settings of the server:
    /// `fsync=off`.
    ///
    /// # Errors
    /// When no server is installed, or it does not start.
    pub fn start(folder: &Path, port: Option<u16>, settings: &[&str]) -> Result<Self> {
        let programs = programs()?;
        fs::create_dir_all(folder)?;
        let user = ServerUser::find()?;
        user.own(folder)?;
        let data = folder.join("data");
        if !data.join("PG_VERSION").exists() {
            create_data(&programs, folder, &data, &user)?;
        }
        let port = match port {
            Some(port) => port,
            None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port(),
        };
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(programs.join("postgres")).arg("-D").arg(&data);
        let port_setting = format!("port={port}");
        let sockets = "unix_socket_directories=";
        let own = ["listen_addresses=127.0.0.1", &port_setting, sockets, "ssl=on"];
        own.iter().chain(settings).for_each(|setting| _ = command.arg("-c").arg(setting));
        user.run(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut shell = command.current_dir(folder).spawn().context("the shell does not start")?;
        let output = shell.stderr.take();
        let server = Self { folder: folder.to_owned(), port, shell };
        output.map_or(Ok(()), |output| wait_until_ready(output, &folder.join("postgres.log")))?;
        Ok(server)
    }

    /// Returns the address of a database of the server.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://{USER}:{PASSWORD}@localhost:{}/{database}", self.port)
    }

    /// Returns the file with the certificate of the authority that signed the server's certificate.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.join(AUTHORITY)
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        _ = self.shell.wait();
    }
}

/// Returns the folder with the programs of the newest installed server.
fn programs() -> Result<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = debian
        .filter_map(|version| {
            let number: u32 = version.file_name().to_str()?.parse().ok()?;
            Some((number, version.path().join("bin")))
        })
        .collect();
    found.sort();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&others).collect::<Vec<_>>().into_iter();
    let mut folders = found.into_iter().rev().map(|(_, folder)| folder).chain(others);
    let found =
        folders.find(|folder| folder.join("postgres").exists() && folder.join("initdb").exists());
    match found {
        Some(folder) => Ok(folder),
        None => bail!("no PostgreSQL server is installed: install Debian's package `postgresql`"),
    }
}

/// Whether a PostgreSQL server is installed.
#[must_use]
pub fn is_postgres_installed() -> bool {
    programs().is_ok()
}

/// The user of the server, which refuses to run as root.
struct ServerUser(Option<(u32, u32)>);

impl ServerUser {
    fn find() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd")?;
        let ids = |name: &str| {
            let mut fields = users
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
                .split(':')
                .skip(1);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let found = ids("postgres").or_else(|| ids("nobody"));
        found
            .map(|ids| Self(Some(ids)))
            .context("the system has no user `postgres` or `nobody`, and no server runs as root")
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        self.0.map_or(Ok(()), |(user, group)| chown(path, Some(user), Some(group)))
    }

    fn run(&self, command: &mut Command) {
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
    }
}

fn create_data(programs: &Path, folder: &Path, data: &Path, user: &ServerUser) -> Result<()> {
    let password = folder.join("password");
    fs::write(&password, PASSWORD)?;
    user.own(&password)?;
    let mut command = Command::new(programs.join("initdb"));
    command.arg("-D").arg(data).arg("--pwfile").arg(&password);
    command.args(["--username", USER, "--auth", "scram-sha-256", "--no-sync"]);
    command.args(["--encoding", "UTF8", "--locale", "C.UTF-8"]);
    user.run(&mut command);
    let output = command
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .context("initdb does not start")?;
    if !output.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::remove_file(&password)?;
    write_certificates(folder, data, user)
}

/// Writes a certificate for `localhost`, and that of its authority.
fn write_certificates(folder: &Path, data: &Path, user: &ServerUser) -> Result<()> {
    let mut authority = rcgen::CertificateParams::new([])?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(authority, rcgen::KeyPair::generate()?)?;
    let key = rcgen::KeyPair::generate()?;
    let certificate =
        rcgen::CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &authority)?;
    fs::write(folder.join(AUTHORITY), authority.pem())?;
    for (name, content) in [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())]
    {
        let path = data.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        user.own(&path)?;
    }
    Ok(())
}

/// Waits until the server accepts connections. All that it prints is in the file `log`.
fn wait_until_ready(output: ChildStderr, log: &Path) -> Result<()> {
    let mut file = File::create(log)?;
    let mut lines = BufReader::new(output).lines();
    for line in lines.by_ref() {
        let line = line?;
        writeln!(file, "{line}")?;
        if line.contains("database system is ready to accept connections") {
            std::thread::spawn(move || {
                lines.map_while(Result::ok).for_each(|line| _ = writeln!(file, "{line}"));
            });
            return Ok(());
        }
    }
    bail!("the PostgreSQL server does not start: {}", fs::read_to_string(log)?)
}
