"""Prints the template as SAM hands it to CloudFormation, of the template as it is written and with its loops written out."""

import json
import sys

from samcli.lib.cfn_language_extensions.sam_integration import expand_language_extensions
from samcli.yamlhelper import yaml_parse
from samtranslator.translator.transform import transform


class NoManagedPolicies:
    """Every permission is written out in the template: there are no names to look up."""

    def load(self):
        return {}


written, expanded = sys.argv[1:]
with open(expanded) as file:
    template = json.load(file)
# What SAM writes out keeps no intrinsic function whose values it guesses, so that only the names can be compared.
with open(written) as file:
    by_sam = expand_language_extensions(yaml_parse(file.read()), {}, enabled=True).expanded_template
differ = set(by_sam["Resources"]) ^ set(template["Resources"])
if differ:
    sys.exit(f"SAM writes out other resources of the loops: {sorted(differ)}")
template["Globals"]["Function"]["CodeUri"] = "s3://bucket/key"
print(json.dumps(transform(template, {}, NoManagedPolicies()), indent=1))
